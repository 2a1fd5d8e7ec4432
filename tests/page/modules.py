"""The page's modules without a browser: those that draw nothing run in quickjs, whose modules give nothing back."""

import json
import re
from pathlib import Path
from typing import Any

import quickjs

from ridgeline.learn.page.assets import STATIC

_IMPORT = re.compile(r'^import (\{[^}]*\}|\* as \w+) from "page/([^"]+)";$', re.MULTILINE)
_EXPORT = re.compile(r"^export ((?:async )?(?:function\*?|const|class) (\w+))", re.MULTILINE)


class Modules:
    """Modules that share a context; each is read with those that it imports."""

    def __init__(self, *names: str) -> None:
        self._context = quickjs.Context()
        self._context.eval("globalThis.modules = {};")
        self._read: set[str] = set()
        for name in names:
            self.read(name)

    def read(self, name: str) -> None:
        """A file of the page."""
        if name in self._read:
            return
        self._read.add(name)
        self.add(name, Path(STATIC, name).read_text("utf-8"))

    def add(self, name: str, text: str) -> None:
        """Read the text of a file that is not among the page's."""
        self._read.add(name)
        for _, imported in _IMPORT.findall(text):
            self.read(imported)
        exported = ", ".join(found for _, found in _EXPORT.findall(text))
        body = _EXPORT.sub(r"\1", _IMPORT.sub(_as_constant, text))
        self._context.eval(f"modules[{json.dumps(name)}] = (() => {{\n{body}\nreturn {{ {exported} }};\n}})();")

    def stand_in(self, name: str) -> None:
        """Something in the place of a file that draws: whatever is asked of it is a function that does nothing."""
        self._read.add(name)
        self._context.eval(f"modules[{json.dumps(name)}] = new Proxy({{}}, {{ get: () => function () {{}} }});")

    def call(self, name: str, function: str, *arguments: Any) -> Any:
        """What a function of a module gives, through JSON both ways."""
        given = ", ".join(map(json.dumps, arguments))
        return self.eval(f"modules[{json.dumps(name)}].{function}({given})")

    def eval(self, code: str) -> Any:
        """The value of an expression, which may use `modules`."""
        said = self._context.eval(f"JSON.stringify({code})")
        return None if said is None else json.loads(said)


def _as_constant(found: "re.Match[str]") -> str:
    names, module = found[1].removeprefix("* as "), found[2]
    return f"const {names.replace(' as ', ': ')} = modules[{json.dumps(module)}];"
