"""Who wrote which character, through every operation that templates use."""

import itertools
import string
from collections.abc import Callable

import jinja2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeline.core.text.provenance import TrustedStr, concat, marks_of, written_join
from ridgeline.core.text.sandbox import ChatEnvironment

# In these tests the template writes capitals and white space, a user types small letters.
TEXT = st.text("AB ab\n", max_size=12)


def written(text: str) -> TrustedStr:
    return TrustedStr(text, bytes(not c.islower() for c in text))


def check(result: str, expected: str) -> None:
    assert str.__eq__(result, expected)
    assert isinstance(result, TrustedStr)
    assert result.marks == written(expected).marks


OPERATIONS: dict[str, Callable[[str, str], object]] = {
    "add": lambda a, b: a + b,
    "strip": lambda a, b: a.strip(),
    "strip chars": lambda a, b: a.strip("A\n"),
    "lstrip": lambda a, b: a.lstrip("\n"),
    "rstrip": lambda a, b: a.rstrip(),
    "slice": lambda a, b: a[len(b) : -1],
    "step": lambda a, b: a[::-2],
    "times": lambda a, b: a * 3,
    "split": lambda a, b: a.split("a"),
    "split once": lambda a, b: a.split("\n", 1),
    "rsplit": lambda a, b: a.rsplit("A", 1),
    "join": lambda a, b: a.join([b, a, b]),
    "replace": lambda a, b: a.replace("A", b),
    "replace two": lambda a, b: a.replace("a", "A", 1) if "a" not in a else a,
    "removeprefix": lambda a, b: a.removeprefix("A"),
    "removesuffix": lambda a, b: a.removesuffix("b"),
}


@given(a=TEXT, b=TEXT, name=st.sampled_from(sorted(OPERATIONS)))
def test_operations_keep_marks(a: str, b: str, name: str) -> None:
    operation = OPERATIONS[name]
    result, expected = operation(written(a), written(b)), operation(a, b)
    if isinstance(expected, list):
        assert isinstance(result, list)
        assert len(result) == len(expected)
        for mine, theirs in zip(result, expected, strict=True):
            check(mine, theirs)
    else:
        assert isinstance(result, str)
        assert isinstance(expected, str)
        check(result, expected)


@given(a=TEXT, b=TEXT)
def test_typed_text_stays_typed(a: str, b: str) -> None:
    """Joined with ordinary strings from either side; other operations lose the marks, which trusts nothing."""
    mine = TrustedStr.by_template(a)
    assert (b + mine).marks == bytes(len(b)) + b"\x01" * len(a)
    assert (mine + b).marks == b"\x01" * len(a) + bytes(len(b))
    assert written_join(b, mine, 1).marks == marks_of(b) + mine.marks + b"\x00"
    for lost in (f"{mine}!", "".join([b, mine, b]), mine.casefold(), mine.center(30), *mine.split()):
        assert type(lost) is str or not any(marks_of(lost))
    runs = concat([b, mine, b]).runs()
    assert "".join(text for text, _ in runs) == b + a + b
    assert all(first[1] != second[1] for first, second in itertools.pairwise(runs))


def test_no_method_of_str_trusts_what_it_made() -> None:
    """Whatever str offers: a Written result holds a mark only where that character was marked."""
    tried = 0
    for name in dir(str):
        if name.startswith("_"):
            continue
        for arguments in ((), ("A",), ("A", "b"), (3,)):
            text = TrustedStr("AaA", b"\x01\x00\x01")
            try:
                result = getattr(text, name)(*arguments)
            except (TypeError, ValueError, LookupError):
                continue
            tried += 1
            for item in result if isinstance(result, list | tuple) else [result]:
                if isinstance(item, TrustedStr):
                    assert sum(item.marks) <= sum(c in string.ascii_uppercase + "Aa" for c in item)
                    assert item not in ("aA", "a") or item.marks in (b"\x00\x01", b"\x00"), name
    assert tried > 50


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("A{{ x }}B", "AxB"),
        ("{{ 'A' + x + 'B' }}", "AxB"),
        ("{{ 'A' ~ x ~ 'B' }}", "AxB"),
        ("{{ ('A' + x + ' ') | trim }}", "Ax"),
        ("{{ ('A' + x)[-1] }}{{ ('A' + x)[0] }}", "xA"),
        ("{% set t = 'A' %}{% if x %}{{ t }}{% endif %}{{ x }}", "Ax"),
        ("{% set t %}A{{ x }}{% endset %}{{ t }}", "Ax"),
        ("{% macro m(v) %}A{{ v }}B{% endmacro %}{{ m(x) }}", "AxB"),
        ("{% macro m(v) -%}A{{ caller() }}{% endmacro %}{% call m(x) %}B{{ x }}{% endcall %}", "ABx"),
        ("{% for c in [x, 'A', x] %}{{ c }}{% endfor %}", "xAx"),
        ("{{ ['A', x, 'B'] | join('C') }}", "ACxCB"),
        ("{{ ('AyB' | replace('y', x)) }}", "AxB"),
        ("{% set ns = namespace(v='') %}{% set ns.v = ns.v + 'A' + x %}{{ ns.v }}", "Ax"),
        ("{{ 'A' if x == 'x' else 'B' }}{{ x }}", "Ax"),
        ("{% generation %}A{{ x }}{% endgeneration %}", "Ax"),
        ("{{ x | default('A') }}{{ nothing | default('A') }}", "xA"),
        ("{% filter trim %} A{{ x }} {% endfilter %}", "Ax"),
        ("{{ x + 'A' + (x | safe) }}", "xAx"),
        ("{{ (x | safe) + 'A' + x }}", "xAx"),
        ("{{ 'A' + ('B' + x | e) }}", "ABx"),
        ("{{ (('A' + x) | safe | trim)[-1:] + 'B' }}", "xB"),
    ],
)
def test_templates_keep_marks(source: str, expected: str) -> None:
    """Every way to write into a prompt: what the template wrote is a capital, what was typed a small letter."""
    environment = ChatEnvironment()
    compiled, _ = environment.compile_chat(source)
    with environment.budgeted():
        check(compiled.render(x="x"), expected)


@pytest.mark.parametrize(
    "source",
    [
        "{{ '<' + x + (y | safe) }}",
        "{{ (x | safe) + '<|' + y }}",
        "{{ (x | e) + '&' + (y | e) }}",
        "{{ x + (y | tojson | safe) + x }}",
        "{{ [x | safe, y] | join('<') }}",
        "{{ (x | forceescape) + y }}",
        "{{ (1 | safe) + x }}",
        "{{ ((x | safe) + y)[2:] + x }}",
    ],
)
def test_safe_text_is_escaped_as_jinja_has_it(source: str) -> None:
    """The text is jinja's own, whatever the marks."""
    environment = ChatEnvironment()
    compiled, _ = environment.compile_chat(source)
    values = {"x": "<a & 'b'>", "y": '"<|end|>"'}
    plain = jinja2.Environment()
    plain.filters["tojson"] = environment.filters["tojson"].__wrapped__
    with environment.budgeted():
        assert compiled.render(**values) == plain.from_string(source).render(**values)


@pytest.mark.parametrize(
    "source", ["{{ '%s' | format(x) }}", "{{ 'A' | tojson }}", "{{ '{}'.format(x) }}", "{{ x|safe }}"]
)
def test_unknown_operations_trust_nothing(source: str) -> None:
    environment = ChatEnvironment()
    compiled, _ = environment.compile_chat(source)
    with environment.budgeted():
        assert not any(marks_of(compiled.render(x="<|x|>")))
