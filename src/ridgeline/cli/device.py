"""The card that a user names."""

from ridgeline.roofline.cards import load_card
from ridgeline.roofline.device import Device


def device_named(name: str, threads: int | None = None) -> Device:
    """A card of the catalogue, of a file, or the machine at hand: `this` is its processor, which is probed for two
    seconds where `ridgeline calibrate` has not measured it for so many threads; `cuda` its accelerator, calibrated.
    Raises ValueError as `load_card`."""
    if name not in ("this", "cuda"):
        return load_card(name)
    from ridgeline.calibrate.this import this_accelerator, this_device  # what measures is loaded only to measure

    return this_accelerator() if name == "cuda" else this_device(threads, estimate=True)
