"""The origin of a device's efficiency constants."""

from ridgeline.price.device_basis import basis_of, describe_basis
from ridgeline.price.devices import catalogue_devices, load_device
from support.planned import card


def test_whose_kernel_times_a_card_has() -> None:
    bases = {name: basis_of(load_device(name)) for name in ("l40s", "rtx-4090", "mi300x", "m4-max", "epyc-9654")}
    assert bases == {"l40s": "own", "rtx-4090": "alike", "mi300x": "kind", "m4-max": "kind", "epyc-9654": "kind"}
    assert (
        describe_basis(load_device("rtx-4090"))
        == "kernel times of rtx-3090-ti and rtx-5090, a device of the same family"
    )
    assert basis_of(card(calibrated=True)) == "calibrated"
    assert "a short probe of its peak rates" in describe_basis(card(basis="probe"))
    assert {basis_of(device) for device in catalogue_devices()} == {"own", "alike", "kind"}
