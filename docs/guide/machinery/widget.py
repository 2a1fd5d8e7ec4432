"""The page's calculator in a chapter, set to what the chapter speaks of: one file beside the chapters, which computes
with the same tables as the server's page.

```{calculator} card=a100-sxm-80gb&users=32&input=2000
What to do with it.
```
"""

import shlex
import subprocess
import sys
from html import escape
from pathlib import Path

from docs.guide.machinery.content import CALCULATOR, CALCULATOR_OPTIONS, calculator_address
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective


class Calculator(SphinxDirective):
    """Folded, and loaded when it is opened."""

    required_arguments = 1
    has_content = True

    def run(self) -> list[nodes.Node]:
        """A frame with the file, at an address that says the case."""
        address = calculator_address(self.arguments[0])
        told = escape(" ".join(self.content))
        shown = (
            f'<details class="calculator"><summary>Drag it yourself</summary><p>{told} '
            f'<a href="{escape(address)}">On a page of its own.</a></p>'
            f'<iframe data-src="{escape(address)}" title="The calculator"></iframe></details>'
        )
        return [nodes.raw("", shown, format="html")]


def write_calculator(app: Sphinx, error: Exception | None) -> None:
    """The file, when the site has been built. Raises RuntimeError where it cannot be."""
    if error is not None or app.builder.format != "html":
        return
    call = [sys.executable, "-m", "ridgeline", "page", "export", "--force", "--out", str(Path(app.outdir) / CALCULATOR)]
    done = subprocess.run([*call, *shlex.split(CALCULATOR_OPTIONS)], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{CALCULATOR}: {done.stderr.strip()}")
