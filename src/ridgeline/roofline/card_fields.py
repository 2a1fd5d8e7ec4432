"""What each field of a card holds, in which unit, and what a number in another unit was probably meant to be."""

REQUIRED = {
    "title": "a text",
    "kind": "gpu, cpu or accelerator",
    "tflops": "a table like { bf16 = 989 }: dense TFLOP/s by number format",
    "bandwidth": "GB/s of its memory",
    "memory": "a table: { mib = 81559 } in MiB, as the driver shows it, or { gb = 80 } in GB, as sold",
}
OPTIONAL = {
    "caches": 'a list like [{ name = "L2", mib = 50, bandwidth = 8986 }]: MiB and GB/s',
    "link": 'a table like { name = "NVLink 4", bandwidth = 450 }: GB/s of one card in one direction',
    "watts": "watts",
    "price": 'a table like { dollars = 2.5, date = "2026-11", source = "my bill" }: dollars an hour',
    "efficiency": "the name of a set of constants, or a table of them by class",
    "sources": "a table of texts by field, or { all = ... }",
}

# Unit, least, most, and the range of what is made: wide of every card, narrower than a factor of a thousand.
_UNITS = {
    "bandwidth": ("GB/s", 10, 100_000, 10, 20_000),
    "link.bandwidth": ("GB/s", 0.1, 100_000, 1, 5_000),
    "tflops": ("TFLOP/s", 0.01, 100_000, 5, 20_000),
    "memory.gb": ("GB", 0.25, 50_000, 1, 10_000),
    "memory.mib": ("MiB", 256, 50_000 * 1000, 1024, 10_000 * 1024),
}
# What people write for the unit: the bare one, then a thousand of it less and more.
_DECIMAL, _BINARY = (1e-9, 1e-6, 1e-3, 1e3), (2.0**-20, 2.0**-10, 2.0**10)
_MEMORY = {"gib": ("mib", 1024), "tib": ("mib", 2**20), "mb": ("gb", 1e-3), "tb": ("gb", 1e3)}


def implausible(field: str, value: float) -> str | None:
    """`is 1e+12; bandwidth is in GB/s; did you mean 1000?` for what no card has; None for what one may have."""
    kind = "tflops" if field.startswith("tflops.") else field
    if kind not in _UNITS:
        return None
    unit, least, most, low, high = _UNITS[kind]
    if least <= value <= most:
        return None
    factors = _BINARY if unit == "MiB" else (1e-12, *_DECIMAL) if kind == "tflops" else _DECIMAL
    meant = next((value * factor for factor in factors if low <= value * factor <= high), None)
    hint = f"it must be from {least:g} to {most:,}" if meant is None else f"did you mean {meant:.10g}?"
    return f"is {value:g}; {field} is in {unit}; {hint}"


def memory_instead(name: str, value: object) -> str | None:
    """`mib = 49152` for 48 in a unit called gib."""
    unit, factor = _MEMORY.get(name.lower(), ("", 0))
    if not unit or not isinstance(value, int | float):
        return None
    return f"{unit} = {value * factor:.10g}"
