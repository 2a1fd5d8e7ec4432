"""The origin of a device's efficiency constants: a calibration, kernel times, or typical constants of its kind."""

from typing import Literal

from ridgeline.price.device import Basis, Device


def basis_of(device: Device) -> Basis | Literal["calibrated"]:
    """Return the origin of a device's efficiency constants, such as "calibrated" or "own"."""
    return "calibrated" if device.calibrated else device.basis


def describe_basis(device: Device) -> str:
    """Return a text on the origin of a device's constants, such as `kernel times of h100-sxm, a device of ...`."""
    match basis_of(device):
        case "calibrated":
            return "calibrated on this machine"
        case "own":
            return "kernel times measured on this device"
        case "alike":
            return f"kernel times of {device.measured_on}, a device of the same family"
        case "kind":
            return "no kernel times of this device: typical constants of its kind"
        case "file":
            return "efficiency constants from the device's file"
        case "probe":
            return "no kernel times of this machine: a short probe of its peak rates, and typical constants"
