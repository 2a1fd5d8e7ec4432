"""Well-known models that are not covered, and what is missing for each: catalogue/unsupported.toml."""

import tomllib
from importlib import resources


def missing_for(name: str) -> str | None:
    """What keeps a model, by the name of the catalogue or of its architecture, from being built; None if it is not
    known to be missing anything."""
    text = resources.files("ridgeline").joinpath("catalogue", "unsupported.toml").read_text(encoding="utf-8")
    entries = tomllib.loads(text)
    entry = entries.get(name.lower())
    if entry is None:
        entry = next((e for e in entries.values() if e["architecture"] == name), None)
    if entry is None:
        return None
    architecture = "" if entry["architecture"] == name else f" ({entry['architecture']})"
    return f"{name}{architecture} is not supported yet; missing: {', '.join(entry['missing'])}"
