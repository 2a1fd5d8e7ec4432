"""The translator of formulas: each construct gives in JavaScript what it gives in Python, and others are refused."""

import json
import math
import random
import sys
from collections.abc import Iterator
from dataclasses import asdict, is_dataclass
from pathlib import Path
from textwrap import dedent, indent
from types import ModuleType
from typing import Any

import pytest

import python_to_js
from js_kinds import UntranslatableError
from page.modules import Modules
from python_to_js import STATIC, JsModule, generated, marked_in

HEAD = """
import bisect
import math
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import inf
from typing import Any, ClassVar, Literal, NewType

GB = NewType("GB", float)
WIDTHS = ("fp4", "fp8", "bf16")
ROUNDS = {"all_reduce": 2, "all_gather": 1}
SCALES = ((1e3, "k"), (1.0, ""))
SMALL, LIMIT = 1e-12, inf


@dataclass(frozen=True)
class Time:  # also in made.js
    floor: float
    expected: float = 0.5
    limit: str | None = None

    def __add__(self, other: "Time") -> "Time":  # also in made.js
        return Time(self.floor + other.floor, self.expected + other.expected)

    def __mul__(self, factor: float) -> "Time":  # also in made.js
        return self.map(lambda value: value * factor)

    def map(self, change: Callable[[float], float]) -> "Time":  # also in made.js
        return Time(change(self.floor), change(self.expected))

    @property
    def both(self) -> float:  # also in made.js
        return self.floor + self.expected

    @classmethod
    def of(cls, values: Sequence[float]) -> "Time":  # also in made.js
        return cls(values[0], values[-1])

    def scaled(self, factor: float = 2.0, *, more: float = 0.0) -> "Time":  # also in made.js
        return Time(self.floor * factor + more)

    def unmarked(self) -> float:
        return self.floor


@dataclass
class Queue:  # also in made.js
    word: ClassVar[str] = "a word"
    times: list[Time] = field(default_factory=lambda: [Time(0.0)])
    known: dict[int, tuple[Time, Time]] = field(default_factory=dict)


BASE = Time(1.0, 3.0, "compute")


def a_time(x: float | None) -> Time | None:  # also in made.js
    return None if x is None else Time(x)


def half(x: float) -> float:  # also in made.js
    return x / 2


def apply(change: Callable[[float], float], x: float) -> float:  # also in made.js
    return change(x)


def pair(choose: Callable[[float, float], float], x: float) -> float:  # also in made.js
    return choose(x, 2.0)


def unmarked(x: float) -> float:
    return x
"""


def module_of(source: str) -> ModuleType:
    """Return a module with this source, which the translator can find."""
    module = ModuleType("made")
    sys.modules["made"] = module
    exec(compile(source, "made.py", "exec"), vars(module))
    return module


@pytest.fixture(autouse=True)
def _forgotten() -> Iterator[None]:
    yield
    sys.modules.pop("made", None)


def source_of(parameters: str, result: str, body: str) -> str:
    return (
        f"{HEAD}\n\ndef tried({parameters}) -> {result}:  # also in made.js\n{indent(dedent(body).strip(), '    ')}\n"
    )


def plain(value: Any) -> Any:
    """Return a value as JSON has it."""
    if is_dataclass(value) and not isinstance(value, type):
        return plain(asdict(value))
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    return {str(key): plain(each) for key, each in value.items()} if isinstance(value, dict) else value


# A name, the parameters, the kind of result, the body, and the arguments of several calls.
CASES: list[tuple[str, str, str, str, list[tuple[Any, ...]]]] = [
    ("sums", "a: float, b: float, c: float", "float", "return a - (b - c) - b / (a * c) * 2 + -(a + b)", [(3, 4, 5)]),
    ("powers", "a: float, b: float", "float", "return -a ** b * 2 ** -b", [(2, 3), (1.5, 0.5)]),
    ("whole quotients", "a: int, b: int", "tuple[int, int]", "return a // b, a % b",
     [(7, 2), (-7, 2), (7, -2), (-8, 2), (0, 3)]),
    ("quotients of fractions", "a: float, b: float", "tuple[float, float]", "return a // b, a % b",
     [(7.5, 2.0), (-7.5, 2.0)]),
    ("divmod", "a: int, b: int", "tuple[int, int]", "q, r = divmod(a, b)\nreturn r, q", [(17, 5), (-17, 5)]),
    ("comparisons", "a: float, b: float", "list[bool]",
     "return [a < b, a <= b, a > b, a >= b, a == b, a != b, 1 < a <= 3, not a < b]",
     [(1, 2), (2, 2), (3, 2)]),
    ("conditions", "a: float, b: float", "float", "return a if a > b and not (a > 5 or b < 0) else -b if b else 7",
     [(1, 0), (9, 2), (3, 2)]),
    ("a choice of texts", "a: str, b: str", "str", "return a or b", [("", "x"), ("y", "x")]),
    ("branches", "a: int", "str", """
        if a > 10:
            size = "large"
        elif a > 5:
            size = "medium"
        else:
            size = "small"
        return size + "!"
     """, [(3,), (7,), (20,)]),
    ("match", "a: str", "int", """
        match a:
            case "x":
                return 1
            case "y":
                found = 2
            case _:
                found = 3
        return found
     """, [("x",), ("y",), ("z",)]),
    ("mathematics", "x: float", "list[float]", """
        return [math.sqrt(x), math.exp(-x), math.log(x), math.log2(x), math.log1p(x), math.floor(x),
                math.ceil(x), math.pow(x, 0.3), math.hypot(x, 2.0), math.lgamma(x), abs(-x),
                int(x), float(x), int(x > 2), min(x, 2.0), max(x, 2.0, 3)]
     """, [(0.5,), (2.5,), (14.9,), (1234.0,)]),
    ("common divisors", "a: int, b: int", "int", "return math.gcd(a, b)", [(12, 18), (7, 5), (5, 0)]),
    ("loops", "n: int", "int", """
        total = other = 0
        for i in range(n):
            last = i * 2
            total += last
            other -= i
        for i in range(2, n):
            total *= 2
            if total > 100:
                break
        for i in range(n, 0, -3):
            total += i
        while other < 0:
            other += 7
        return total * 1000 + other
     """, [(0,), (5,), (9,)]),
    ("a value from inside a loop", "xs: Sequence[float]", "float", """
        best = 0.0
        for x in xs:
            if x > best:
                best, seen = x, x * 2
        return seen + best
     """, [([1, 5, 3],)]),
    ("an exchange", "a: float, b: float", "tuple[float, float]", "a, b = b, a\nb = a + b\nreturn a, b", [(1, 2)]),
    ("unpacking", "p: tuple[float, tuple[str, float]]", "str", "a, (b, c) = p\nd = p[1]\nreturn f'{b}{a + c}{d[0]}'",
     [((1, ("x", 2)),)]),
    ("sequences", "xs: Sequence[float]", "list[float]", """
        tail = xs[1:]
        return [xs[0], xs[-1], len(xs), len(tail), sum(xs), min(xs), max(xs), xs.index(3), *reversed(xs[:2]), *xs[1:3]]
     """, [([3, 1, 2],)]),
    ("comprehensions", "xs: list[int]", "list[tuple[int, int]]",
     "return [(x, y) for x in xs if x > 1 if x < 9 for y in range(x) if y % 2 == 0]", [([1, 2, 3, 10],)]),
    ("extremes", "xs: list[int]", "list[int]", """
        return [min((x for x in xs if x > 2), default=9), max((x for x in xs if x > 2), default=-9),
                max(xs, key=lambda x: x % 10), min(xs, key=lambda x: x % 10)]
     """, [([13, 3, 21, 1],), ([1, 11],)]),
    ("first of", "xs: list[int]", "int | None", "return next((x for x in xs if x > 2), None)", [([1, 3, 4],), ([1],)]),
    ("pairs", "xs: list[int], ys: list[str]", "list[str]",
     "return [f'{x}{y}' for x, y in zip(xs, ys, strict=True)]", [([1, 2], ["a", "b"])]),
    ("places", "xs: list[float], x: float", "list[int]", "return [bisect_right(xs, x), bisect.bisect_right(xs, x + 1)]",
     [([1, 2, 2, 4], 2), ([], 1), ([3], 0)]),
    ("truth of containers", "xs: list[int], m: Mapping[str, int]", "list[bool]", """
        found = [not xs, not m, True if xs else False]
        if m and not xs:
            found = [True]
        return found
     """, [([], {"a": 1}), ([], {}), ([0], {}), ([0], {"a": 0})]),
    ("a mapping or another", "m: dict[str, int], n: dict[str, int]", "list[int]", """
        first = m or n
        return [*first.values()]
     """, [({}, {"a": 1}), ({"b": 2}, {"a": 1}), ({"b": 2}, {}), ({}, {})]),
    ("mappings", "m: Mapping[str, float], key: str", "list[float]", """
        total = 0.0
        for name in m:
            total += m[name]
        for name, value in m.items():
            total += value * (2 if name == "a" else 1)
        pairs = {name + "!": value for name, value in m.items() if value > 1}
        more = {**pairs, "x": 3.0}
        return [total, len(m), len(more), sum(more.values()), m.get(key, -1.0), max(m.values()), ROUNDS["all_reduce"]]
     """, [({"a": 1, "b": 2.5}, "b"), ({"a": 1, "b": 2.5}, "z")]),
    ("what a mapping has", "m: Mapping[str, float], key: str", "list[bool]",
     "return [key in m, key not in m, m.get(key) is None, key in WIDTHS, key in ('x', 'y'), not m]",
     [({"x": 1}, "x"), ({}, "fp8")]),
    ("numbers as keys", "m: Mapping[int, float]", "list[float]", """
        below = max((count for count in m if count <= 8), default=min(m))
        return [below + 1, m[below], sum(key * value for key, value in m.items()), *[key + 1 for key in m]]
     """, [({2: 0.5, 4: 1.5, 16: 2.0},), ({16: 2.0},)]),
    ("texts", "a: str, b: str", "list[str]", """
        if a.startswith("at"):
            a = f"{a}/{b}: `{1 + 1}` ${{}}"
        return [a, a.rpartition("/")[0], a.rpartition("?")[2], ", ".join([a, b]), 'quote"d']
     """, [("attention", "fp8"), ("linear", "q")]),
    ("constants", "x: float", "list[float]", "return [SMALL * x, 1e300 * x, len(WIDTHS), BASE.expected]", [(2,)]),
    ("objects", "floor: float", "Time", """
        time = Time(floor, limit="memory")
        total = time + Time.of([1.0, 2.0, 3.0]) * 2
        total += time
        total = sum((each for each in [total, time]), Time(0.0, 0.0))
        return Time(total.both, expected=total.scaled(more=1.0).floor)
     """, [(4.0,)]),
    ("defaults that are containers", "at: int", "float", """
        queue = Queue()
        queue.times.append(Time(2.0))
        if at not in queue.known:
            queue.known[at] = queue.times[0], queue.times[1]
        return queue.known[at][at].floor + len(Queue().times)
     """, [(0,), (1,)]),
    ("a change of some fields", "x: float", "Time", "return replace(Time(x, limit='a'), floor=x + 1, limit='b')",
     [(2,)]),
    ("the order of a key", "xs: list[int]", "list[int]", "return sorted(xs, key=lambda x: -x % 10)",
     [([1, 12, 3, 11],)]),
    ("items by group", "xs: list[int]", "list[list[int]]", """
        groups: dict[int, list[int]] = {}
        for x in xs:
            groups.setdefault(x % 3, []).append(x)
        return [*groups.values()]
     """, [([3, 1, 4, 6],)]),
    ("formats of numbers", "x: float, places: int", "str", """
        scale, prefix = next(((s, p) for s, p in SCALES if x >= s), SCALES[-1])
        return f"{x:,.0f} {x / scale:.{places + 1}f}{prefix} {x:.2e} {x:.1%}"[0:-1]
     """, [(2.5, 0), (123456.75, 2), (0.5, 1)]),
    ("parts of a text", "a: str", "list[str]", "return [a[0], a[-1], a[:-1], 'yes' if a[-1].isalpha() else 'no']",
     [("1.5k",), ("µ",), ("1.5",)]),
    ("numbers in texts", "a: str", "float", "return GB(int(a) / 2)", [("12",), ("-03",)]),
    ("identity and None", "x: float | None", "list[bool]", """
        a, b, c = Time(1.0), Time(1.0), a_time(x)
        return [a is a, a is b, a is not b, c is None, c is not None, x is None]
     """, [(None,), (1.0,)]),
    ("functions inside", "x: float", "float", """
        def twice(y: float) -> float:
            found = y * 2
            return found + x
        return apply(twice, half(x)) + pair(max, x)
     """, [(3.0,)]),
    ("names that JavaScript reserves", "new: float, case: float", "float", "default = new + case\nreturn default",
     [(1, 2)]),
    ("running sums", "xs: list[float]", "list[float]", """
        sums: list[float] = [0.0]
        known: dict[int, float] = {}
        for x in xs:
            sums.append(sums[-1] + x)
            known[len(known)] = x
        sums[0] = float(len(known))
        return sums
     """, [([1, 2, 3],)]),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=[case[0] for case in CASES])
def test_a_construct_gives_what_it_gives_in_python(case: tuple[Any, ...]) -> None:
    _, parameters, result, body, calls = case
    source = source_of(parameters, result, body)
    module = module_of(source)
    page = Modules("python.js")
    page.add("made.js", JsModule("made.js", list(marked_in(source, module))).text())
    for arguments in calls:
        wanted = plain(module.tried(*arguments))
        found = page.call("made.js", "tried", *json.loads(json.dumps(arguments)))
        assert alike(found, wanted), (arguments, found, wanted)


def alike(found: Any, wanted: Any) -> bool:
    """Return whether numbers agree within rounding, and all else exactly."""
    if isinstance(wanted, list):
        return len(found) == len(wanted) and all(map(alike, found, wanted))
    if isinstance(wanted, dict):
        return found.keys() == wanted.keys() and all(alike(found[name], wanted[name]) for name in wanted)
    if isinstance(wanted, float):
        return found == pytest.approx(wanted, rel=1e-13)
    return bool(found == wanted and isinstance(found, bool) == isinstance(wanted, bool))


def test_an_error_has_the_text_of_pythons() -> None:
    source = source_of("x: float", "float", "if x > 1:\n    raise ValueError(f'{x} is more than 1')\nreturn x")
    page = Modules("python.js")
    page.add("made.js", JsModule("made.js", list(marked_in(source, module_of(source)))).text())
    assert page.call("made.js", "tried", 1) == 1
    with pytest.raises(Exception, match="Error: 3 is more than 1"):
        page.call("made.js", "tried", 3)


REFUSED = [
    ("x: float", "return unmarked(x)", "unmarked is not translated; mark it with `# also in made.js`"),
    ("x: Time", "return x.unmarked()", "Time.unmarked is not translated"),
    ("x: Time", "return x.nothing", "x.nothing is no field or property"),
    ("x: float", "return missing + x", "missing is not known here"),
    ("x: float", "return x @ x", "`x @ x` cannot be translated"),
    ("x: float", "return x & 1", "`x & 1` cannot be translated"),
    ("x: str", "return x * 3", "`x * 3` cannot be translated"),
    ("x: str", "return x + 3", "`x + 3` cannot be translated"),
    ("x: list[int]", "return x + x", "`x + x` cannot be translated"),
    ("x: Time", "return x - x", "`x - x` cannot be translated"),
    ("x: str", "return x == 3", "`x == 3` cannot be translated"),
    ("x: list[int]", "return x == [1]", "`x == [1]` cannot be translated"),
    ("x: float", "return x == None", "None is compared with `is`"),
    ("x: float", "return x is x", "`x is x` cannot be translated"),
    ("x: float", "return 1 < half(x) < 2", "would compute its middle twice"),
    ("x: list[int]", "return x[::2]", "`x[::2]` cannot be translated"),
    ("x: float", "return x[0]", "`x[0]` cannot be translated"),
    ("x: float", "return x.real", "a number has no attributes"),
    ("x: str", "return x.upper()", "`x.upper()` cannot be translated"),
    ("x: float", "return round(x)", "`round(x)` cannot be translated"),
    ("x: float", "return math.erf(x)", "`math.erf(x)` cannot be translated"),
    ("x: float", "return f'{x!r}'", "`f'{x!r}'` cannot be translated"),
    ("x: Time", "return replace(x, **{'floor': 1.0})", "`replace(x, **{'floor': 1.0})` cannot be translated"),
    ("x: float", "return 1 if x else 'a'", "gives values of different kinds"),
    ("x: float", "return x or 'a'", "gives values of different kinds"),
    ("x: list[int]", "return x[1:] or x", "`x[1:] or x` cannot be translated"),
    ("x: list[int]", "return x and x", "`x and x` cannot be translated"),
    ("x: float", "return [1, 'a']", "must have items of one kind"),
    ("x: float", "return half(*[x])", "`half(*[x])` cannot be translated"),
    ("x: float", "return (lambda a, b: a)(1, 2)", "`(lambda a, b: a)(1, 2)` cannot be translated"),
    ("x: float", "return sorted([x])", "`sorted([x])` cannot be translated"),
    ("x: float", "return {1, 2}", "`{1, 2}` cannot be translated"),
    ("x: float", "return 3j", "has no counterpart in JavaScript"),
    ("x: float", "return (y := x)", "`(y := x)` cannot be translated"),
    ("x: float", "for i in x:\n    pass", "x is a number, over which no loop can run"),
    ("x: list[int]", "for i in x:\n    pass\nelse:\n    pass", "a loop cannot have an else"),
    ("x: list[int]", "for i in x:\n    j = i\nreturn i", "i is not known here"),
    ("x: float", "x = 'a'", "x is a number first and a string later"),
    ("x: float", "a, b = x", "a number cannot be unpacked"),
    ("x: list[int]", "return zip(x, x)", "zip needs `strict`"),
    ("x: list[str]", "return max(x)", "`max(x)` cannot be translated"),
    ("x: float", "with x:\n    pass", "`with x:` cannot be translated"),
    ("x: float", "try:\n    pass\nfinally:\n    pass", "`try:` cannot be translated"),
    ("x: list[int]", "for i in x:\n    continue", "`continue` cannot be translated"),
    ("x: list[int]", "return any(x)", "`any(x)` cannot be translated"),
    ("x: list[int]", "return enumerate(x)", "`enumerate(x)` cannot be translated"),
    ("x: Mapping[str, int]", "return x.keys()", "`x.keys()` cannot be translated"),
    ("x: float", "return apply(half, x)", "a constant that is a function has no counterpart in JavaScript"),
    ("x: float", "yield x", "`(yield x)` cannot be translated"),
    ("x: float", "global SMALL", "`global SMALL` cannot be translated"),
    ("x: float", "del x", "`del x` cannot be translated"),
    ("x: float", "raise ValueError", "`raise ValueError` cannot be translated"),
    ("x: str", "match x:\n    case 'a' if x:\n        pass", "`match x:` cannot be translated"),
    ("x: str", "match x:\n    case 'a' | 'b':\n        pass", "`match x:` cannot be translated"),
    ("x", "return x", "x needs an annotation"),
    ("*x: float", "return x", "starred parameters cannot be translated"),
    ("x: Any", "return x", "the annotation Any has no counterpart in JavaScript"),
    ("x: set[int]", "return x", "has no counterpart in JavaScript"),
    ("x: float | str", "return x", "has no counterpart in JavaScript"),
    ("x: Mapping[Time, int]", "return x", "has no counterpart in JavaScript"),
]


@pytest.mark.parametrize(("parameters", "body", "says"), REFUSED, ids=[case[1].split("\n")[0] for case in REFUSED])
def test_anything_else_is_refused_in_a_line_with_file_and_line(parameters: str, body: str, says: str) -> None:
    source = source_of(parameters, "Any", body)
    at = source.splitlines().index(f"def tried({parameters}) -> Any:  # also in made.js") + 1
    with pytest.raises(UntranslatableError) as raised:
        JsModule("made.js", list(marked_in(source, module_of(source)))).text()
    assert says in str(raised.value)
    path, line, _ = str(raised.value).split(":", 2)
    assert path == "src/made.py"
    assert at <= int(line) <= at + body.count("\n") + 1
    assert "\n" not in str(raised.value)


def test_two_functions_of_one_name_are_refused() -> None:
    source = source_of("x: float", "float", "return x")
    marked = list(marked_in(source, module_of(source)))
    with pytest.raises(UntranslatableError, match="is marked in two places; rename one of them"):
        JsModule("made.js", [*marked, *marked]).text()


def test_a_function_of_another_file_is_imported() -> None:
    source = f"{HEAD}\n\ndef tried(x: float) -> float:  # also in other.js\n    return half(x)\n"
    text = JsModule("other.js", list(marked_in(source, module_of(source)))).text()
    assert 'import { half } from "page/made.js";' in text


def test_helpers_do_what_python_does() -> None:
    """Compare division and lgamma, over numbers of all sizes and signs."""
    page, rng = Modules("python.js"), random.Random(2)
    for _ in range(300):
        a, b = rng.randint(-(10**9), 10**9), rng.choice((1, -1)) * rng.randint(1, 10 ** rng.randint(1, 9))
        assert page.call("python.js", "floorDivide", a, b) == a // b
        assert page.call("python.js", "modulo", a, b) == a % b
        x = 10 ** rng.uniform(-3, 7)
        assert page.call("python.js", "lgamma", x) == pytest.approx(math.lgamma(x), rel=2e-15, abs=1e-13)


def test_the_generated_files_are_current() -> None:
    """Compare them with a new translation, which `python tools/python_to_js.py` writes."""
    for name, text in generated().items():
        assert Path(STATIC, name).read_text(encoding="utf-8") == text, f"{name}: run python tools/python_to_js.py"


def test_the_command_names_what_is_not_current(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(python_to_js, "STATIC", tmp_path)
    monkeypatch.setattr(python_to_js, "generated", lambda: {"a.js": "1\n"})
    monkeypatch.setattr(sys, "argv", ["python_to_js.py", "--check"])
    assert python_to_js.main() == 1
    assert capsys.readouterr().out == "a.js is not current: python tools/python_to_js.py\n"
    monkeypatch.setattr(sys, "argv", ["python_to_js.py"])
    assert python_to_js.main() == 0
    assert (tmp_path / "a.js").read_text() == "1\n"
    monkeypatch.setattr(sys, "argv", ["python_to_js.py", "--check"])
    assert python_to_js.main() == 0
