"""Folders of installed packages, without importing them."""

from functools import cache
from importlib.util import find_spec
from pathlib import Path


@cache
def folder_of(package: str) -> Path:
    """Return the folder of a package, which may hold files alone (kofn_p4src, kofn_mininet).

    If the package is not installed, return a path with its name that does not exist.
    """
    spec = find_spec(package)
    places = [*(spec.submodule_search_locations or ())] if spec else []
    return Path(places[0]) if places else Path("/not installed") / package
