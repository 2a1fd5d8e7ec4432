"""The dashboard, the alerts and the compose file: every expression asks for a metric that /metrics has."""

import asyncio
import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from ridgeline.server.telemetry.metric_families import FAMILIES, HTTP_FAMILIES, MODEL_LABELS, PREFIX
from server.test_metrics import served, two_requests

FOLDER = Path(__file__).parents[2] / "monitoring"
DASHBOARD = json.loads((FOLDER / "grafana" / "ridgeline.json").read_text())
SUFFIXES = {"gauge": ("",), "counter": ("_total",), "histogram": ("_bucket", "_count", "_sum")}
WORDS = {"sum", "max", "by", "rate", "increase", "histogram_quantile", "label_values", "up"}
PROMTOOL = shutil.which("promtool")
needs_promtool = pytest.mark.skipif(PROMTOOL is None, reason="promtool is not here (Debian's package prometheus)")


def series() -> dict[str, set[str]]:
    """Every name that a query may ask for, with its labels."""
    return {
        prefix + family.name + suffix: {*common, *family.labels, *({"le"} if suffix == "_bucket" else ())}
        for families, prefix, common in ((FAMILIES, PREFIX, MODEL_LABELS), (HTTP_FAMILIES, "", ()))
        for family in families
        for suffix in SUFFIXES[family.kind]
    }


def dashboard_expressions() -> list[str]:
    panels = [target["expr"] for panel in DASHBOARD["panels"] for target in panel.get("targets", [])]
    variables = [one["query"] for one in DASHBOARD["templating"]["list"] if one["type"] == "query"]
    return panels + variables


def alert_expressions() -> list[str]:
    groups = yaml.safe_load((FOLDER / "alerts.yml").read_text())["groups"]
    return [rule["expr"] for group in groups for rule in group["rules"]]


def asked(expression: str) -> Iterator[tuple[str, set[str]]]:
    """The names in an expression, each with the labels in its braces."""
    bare = re.sub(r"label_values\((\S+), \w+\)", r"\1", expression)
    bare = re.sub(r"\[[^]]*\]|by \([^)]*\)", " ", re.sub(r'"[^"]*"', '""', bare))
    for name, braces in re.findall(r"([a-zA-Z_:][\w:]*)\s*(\{[^}]*\})?", bare):
        yield name, set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", braces))


def grouped(expression: str) -> set[str]:
    found = re.findall(r"by \(([^)]*)\)", expression) + re.findall(r"label_values\(\S+, (\w+)\)", expression)
    return {label.strip() for labels in found for label in labels.split(",")}


@pytest.mark.parametrize("source", ["dashboard", "alerts"])
def test_every_expression_names_metrics_and_labels_that_exist(source: str) -> None:
    expressions = dashboard_expressions() if source == "dashboard" else alert_expressions()
    known = series()
    assert len(expressions) >= 6
    for expression in expressions:
        names = [(name, labels) for name, labels in asked(expression) if name not in WORDS]
        assert names or "up{" in expression, expression
        for name, labels in names:
            assert name in known, f"{name} in {expression}"
            assert labels <= known[name], f"{labels} in {expression}"
            assert grouped(expression) <= known[name], expression


def test_what_would_not_exist_is_found() -> None:
    """The test above can fail: it sees through functions, ranges and strings."""
    expression = 'sum by (le, phase) (rate(ridgeline:no_such_bucket{model_name="up", x=~"y"}[5m])) / 2'
    assert [told for told in asked(expression) if told[0] not in WORDS] == [
        ("ridgeline:no_such_bucket", {"model_name", "x"})
    ]
    assert grouped(expression) == {"le", "phase"}


def test_the_dashboard_shows_every_metric_but_those_that_say_it_otherwise() -> None:
    text = " ".join(dashboard_expressions())
    hidden = {family.name for family in (*FAMILIES, *HTTP_FAMILIES) if family.name not in text}
    assert hidden == {
        *("cache_config_info", "build_info", "request_params_n", "request_params_max_tokens", "ignored_fields"),
        *("request_time_per_output_token_seconds", "request_inference_time_seconds"),
        "request_max_num_generation_tokens",
    }
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(ids)) == len(ids)


def test_the_compose_file_mounts_what_is_there_and_pins_its_images() -> None:
    compose = yaml.safe_load((FOLDER / "compose.yaml").read_text())
    for service in compose["services"].values():
        assert re.fullmatch(r"docker\.io/[\w/]+:v?\d+\.\d+\.\d+", service["image"])
        for volume in service["volumes"]:
            source = volume.split(":")[0]
            assert (FOLDER / source).exists() if source.startswith(".") else source in compose["volumes"]
    sources = yaml.safe_load((FOLDER / "grafana/provisioning/datasources/prometheus.yml").read_text())["datasources"]
    assert [source["type"] for source in sources] == ["prometheus"]
    (config,) = yaml.safe_load((FOLDER / "prometheus.yml").read_text())["scrape_configs"]
    assert config["metrics_path"] == "/metrics"


def promtool(*arguments: str | Path, standard_input: bytes = b"") -> tuple[int, str]:
    """Exit code, and all that it says."""
    assert PROMTOOL is not None
    run = subprocess.run([PROMTOOL, *arguments], input=standard_input, capture_output=True, check=False)
    return run.returncode, (run.stdout + run.stderr).decode()


@needs_promtool
def test_promtool_finds_nothing_wrong_with_the_configuration(tmp_path: Path) -> None:
    """The dashboard's expressions go with the alerts', as rules."""
    code, said = promtool("check", "config", FOLDER / "prometheus.yml")
    assert code == 0, said
    expressions = [e.replace("$__rate_interval", "1m") for e in dashboard_expressions() if "label_values" not in e]
    rules = [{"record": f"panel:{number}", "expr": expression} for number, expression in enumerate(expressions)]
    path = tmp_path / "panels.yml"
    path.write_text(json.dumps({"groups": [{"name": "panels", "rules": rules}]}))
    code, said = promtool("check", "rules", path)
    assert code == 0, said
    assert f"{len(rules)} rules found" in said


@needs_promtool
def test_promtool_finds_nothing_wrong_with_metrics_but_what_vllms_names_have() -> None:
    """A colon in a name is for rules, `iteration_tokens_total` is no counter: both are vLLM's, and kept."""
    llm, service, metrics = served("vllm")
    asyncio.run(two_requests(llm, service))
    metrics.answered("/v1/models", "GET", 200, 0.01)
    code, said = promtool("check", "metrics", standard_input=metrics.exposition())
    assert code in (0, 3), said
    known = ("metric names should not contain ':'", "iteration_tokens_total non-counter metrics should not have")
    assert [line for line in said.splitlines() if not any(one in line for one in known)] == []
