"""Ask a real Prometheus for every panel of the dashboard: `python monitoring/check.py http://127.0.0.1:8000`.

It makes requests of its own for a few seconds. Needs `prometheus` and `promtool` (Debian's package prometheus). Exit
codes: 0 every panel has data, 1 one has none, 2 something is missing.
"""

import json
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

FOLDER = Path(__file__).parent
SECONDS = 15  # of traffic, scraped every second
COLON = "metric names should not contain ':'"
NO_COUNTER = "iteration_tokens_total non-counter metrics should not have"  # vLLM's name


def fetch(url: str, body: object = None) -> bytes:
    """Return what a URL responds; a body is sent as JSON."""
    data = None if body is None else json.dumps(body).encode()
    with urllib.request.urlopen(urllib.request.Request(url, data, {"content-type": "application/json"})) as reply:
        return reply.read()


@contextmanager
def prometheus(server: str) -> Iterator[str]:
    """Run a Prometheus that scrapes a server once a second, and yield its URL."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        config = (FOLDER / "prometheus.yml").read_text().replace("127.0.0.1:8000", urlsplit(server).netloc)
        (folder / "prometheus.yml").write_text(config.replace("scrape_interval: 5s", "scrape_interval: 1s"))
        (folder / "alerts.yml").write_text((FOLDER / "alerts.yml").read_text())
        with socket.create_server(("127.0.0.1", 0)) as free:
            address = f"127.0.0.1:{free.getsockname()[1]}"
        arguments = [f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data"]
        process = subprocess.Popen(
            ["prometheus", *arguments, f"--web.listen-address={address}"], stderr=subprocess.DEVNULL
        )
        try:
            yield f"http://{address}"
        finally:
            process.terminate()
            process.wait()


def make_traffic(server: str) -> None:
    """Send valid and invalid requests for `SECONDS`."""
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        fetch(f"{server}/v1/completions", {"prompt": "Once upon a time " * 4, "max_tokens": 32, "ignore_eos": True})
        choice = {"structured_outputs": {"choice": ["yes", f"no {time.monotonic()}"]}}  # a grammar of its own each time
        fetch(f"{server}/v1/completions", {"prompt": "A", "max_tokens": 8} | choice)
        try:
            fetch(f"{server}/v1/completions", {"prompt": "A", "max_tokens": -1})
        except urllib.error.HTTPError as error:
            error.close()


def panels_without_data(url: str, model: str) -> list[str]:
    """Print the values of each panel's expressions, and return the expressions without any."""
    missing = []
    for panel in json.loads((FOLDER / "grafana" / "ridgeline.json").read_text())["panels"]:
        for target in panel.get("targets", []):
            expression = target["expr"].replace("$__rate_interval", f"{SECONDS}s").replace("$model", model)
            reply = json.loads(fetch(f"{url}/api/v1/query?{urllib.parse.urlencode({'query': expression})}"))
            values = [one["value"][1] for one in reply["data"]["result"]]
            print(f"{panel['title']:34} {target['legendFormat']:26} {' '.join(value[:8] for value in values)}")
            if not values:
                missing.append(expression)
    return missing


def main(server: str) -> int:
    """Check every panel and metric of a running server, and return the exit status."""
    if not (shutil.which("prometheus") and shutil.which("promtool")):
        print("prometheus and promtool are not installed: install Debian's package prometheus", file=sys.stderr)
        return 2
    try:
        model = json.loads(fetch(f"{server}/v1/models"))["data"][0]["id"]
    except OSError as error:
        print(f"{server} does not respond: {error}", file=sys.stderr)
        return 2
    with prometheus(server) as url:
        make_traffic(server)
        missing = panels_without_data(url, model)
    checked = subprocess.run(
        ["promtool", "check", "metrics"], input=fetch(f"{server}/metrics"), capture_output=True, check=False
    )
    said = (checked.stdout + checked.stderr).decode().splitlines()
    wrong = [line for line in said if COLON not in line and NO_COUNTER not in line]
    print("\n".join([*(f"no data: {one}" for one in missing), *wrong]) or "every panel has data")
    return 1 if missing or wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1].rstrip("/")) if len(sys.argv) == 2 else (print(__doc__, file=sys.stderr) or 2))
