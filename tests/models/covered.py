"""The check that a list of cases has every family of the registry."""

from collections.abc import Iterable

from ridgeline.core.models import Family


def check_covered(listed: Iterable[str], families: Iterable[Family], where: str) -> None:
    """Assert that a list has a case for each family and for nothing else.

    Args:
        listed: the `model_type` of each case.
        families: those that the list is about, of core/models/registry.py.
        where: the list and its file, as the failure names them.
    """
    registered, found = {family.model_type for family in families}, set(listed)
    missing, unknown = sorted(registered - found), sorted(found - registered)
    assert not missing, f"{where} has no case for {', '.join(missing)}; add one"
    assert not unknown, f"{where} has cases for {', '.join(unknown)}, which core/models/registry.py does not list"
