"""The schema of a device description: field names, units and plausible ranges, and the reader that checks them."""

import difflib
import sys
from collections.abc import Mapping
from typing import Any

REQUIRED = {
    "title": "a non-empty string",
    "kind": "gpu, cpu or accelerator",
    "tflops": "a table like { bf16 = 989 }: dense TFLOP/s by number format",
    "bandwidth": "the bandwidth of its memory in GB/s",
    "memory": "a table: { mib = 81559 } in MiB, as the driver shows it, or { gb = 80 } in GB, as sold",
}
OPTIONAL = {
    "caches": 'a list like [{ name = "L2", mib = 50, bandwidth = 8986 }]: MiB and GB/s',
    "link": 'a table like { name = "NVLink 4", bandwidth = 450 }: GB/s per device in one direction',
    "host_link": "GB/s between one device and its host, in one direction",
    "watts": "watts",
    "price": 'a table like { dollars = 2.5, date = "2026-11", source = "my bill" }: dollars per hour',
    "efficiency": "the name of a set of constants, or a table of constants by kernel class",
    "sources": "a table of strings by field, or { all = ... }",
}

# By field: the unit, the accepted minimum and maximum, and the range of real devices, in which a corrected value must
# be to be suggested.
_UNITS = {
    "bandwidth": ("GB/s", 10, 100_000, 10, 20_000),
    "link.bandwidth": ("GB/s", 0.1, 100_000, 1, 5_000),
    "host_link": ("GB/s", 0.1, 5_000, 1, 1_000),
    "tflops": ("TFLOP/s", 0.01, 100_000, 5, 20_000),
    "memory.gb": ("GB", 0.25, 50_000, 1, 10_000),
    "memory.mib": ("MiB", 256, 50_000 * 1000, 1024, 10_000 * 1024),
}
# Factors from the units that people write by mistake: the base unit, then other prefixes.
_DECIMAL, _BINARY = (1e-9, 1e-6, 1e-3, 1e3), (2.0**-20, 2.0**-10, 2.0**10)
_MEMORY = {"gib": ("mib", 1024), "tib": ("mib", 2**20), "mb": ("gb", 1e-3), "tb": ("gb", 1e3)}


def implausible(field: str, value: float) -> str | None:
    """Return an error text for a value that no real device has, or None for a plausible value.

    An example is `is 1e+12; bandwidth is in GB/s; did you mean 1000?`.
    """
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
    """Return how to write a memory size whose unit is not accepted, such as `mib = 49152` for 48 in `gib`.

    Return None if the unit is unknown or the value is not a number.
    """
    unit, factor = _MEMORY.get(name.lower(), ("", 0))
    if not unit or not isinstance(value, int | float):
        return None
    return f"{unit} = {value * factor:.10g}"


class TableReader:
    """A reader of a TOML or JSON table with checked access to its fields.

    Its accessors raise ValueError that names the field and the fix.
    """

    def __init__(self, values: object, source: str, path: str = "") -> None:
        """Wrap a TOML or JSON table for checked access.

        Args:
            values: The table.
            source: The name of the file or device, for errors.
            path: The path of this table within the source, for errors.

        Raises:
            ValueError: If `values` is not a table.
        """
        self.source, self.path = source, path
        if not isinstance(values, dict):
            raise self.field_error("", values, "a table of fields")
        self.values: dict[str, Any] = values

    def field_error(self, field: str, value: object, expected: str) -> ValueError:
        """Return (do not raise) an error that says that a field has the wrong value."""
        where = f"{self.path}{field}".rstrip(".") or "the device description"
        return ValueError(f"{self.source}: {where} is {value!r}; it must be {expected}")

    def require(self, required: Mapping[str, str]) -> None:
        """Raise ValueError if required fields are missing, naming all of them and what each holds."""
        missing = [f"{field} ({holds})" for field, holds in required.items() if field not in self.values]
        if missing:
            strange = [field for field in self.values if field not in required and field not in OPTIONAL]
            unknown = f"; these are unknown: {', '.join(strange)}" if strange else ""
            raise ValueError(
                f"{self.source}: these fields are missing: {', '.join(missing)}{unknown}; see the example in "
                "docs/plan.md"
            )

    def forbid_unknown(self, *known: str) -> None:
        """Raise ValueError for a field that is not among the `known` ones, since most of these are typos."""
        for field in self.values:
            if field not in known:
                near = difflib.get_close_matches(field, known, 1)
                hint = f"did you mean {near[0]}?" if near else f"the known fields are {', '.join(known)}"
                raise ValueError(f"{self.source}: unknown field {self.path}{field}; {hint}")

    def has(self, field: str) -> bool:
        """Return whether the table contains a field."""
        return field in self.values

    def need(self, field: str) -> Any:
        """Return the value of a required field, or raise ValueError if the table lacks it."""
        if field not in self.values:
            raise ValueError(f"{self.source}: {self.path}{field} is missing; add it")
        return self.values[field]

    def positive(self, field: str) -> float:
        """Return a field that must be a finite number above zero and plausible for a device, or raise ValueError."""
        value = self._number(field, self.need(field), zero=False)
        wrong = implausible(f"{self.path}{field}", value)
        if wrong:
            raise ValueError(f"{self.source}: {self.path}{field} {wrong}")
        return value

    def _number(self, field: str, value: object, *, zero: bool) -> float:
        number = isinstance(value, int | float) and not isinstance(value, bool)
        # math.isfinite would raise OverflowError for a huge int. NaN fails both comparisons.
        if not number or not 0 <= value <= sys.float_info.max or (value == 0 and not zero):  # type: ignore[operator]
            raise self.field_error(field, value, f"a finite number {'of at least' if zero else 'above'} 0")
        return float(value)  # type: ignore[arg-type]

    def text(self, field: str) -> str:
        """Return the value of a field that must be a non-empty string, or raise ValueError."""
        value = self.need(field)
        if not isinstance(value, str) or not value:
            raise self.field_error(field, value, "a non-empty string")
        return value

    def table(self, field: str) -> "TableReader":
        """Return a reader of the table that a field contains, or raise ValueError."""
        value = self.need(field)
        if not isinstance(value, dict):
            raise self.field_error(field, value, (REQUIRED | OPTIONAL).get(field, "a table of fields"))
        return TableReader(value, self.source, f"{self.path}{field}.")

    def numbers(self, field: str, count: int) -> tuple[float, ...]:
        """Return a field that must be a list of `count` non-negative numbers, or raise ValueError."""
        value = self.need(field)
        if not isinstance(value, list) or len(value) != count:
            raise self.field_error(field, value, f"a list of {count} numbers")
        return tuple(self._number(field, entry, zero=True) for entry in value)
