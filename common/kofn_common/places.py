"""Folders of installed packages, without importing them."""

from functools import cache
from importlib.util import find_spec
from pathlib import Path


@cache
def folder_of(package: str) -> Path:
    """Return the folder of a package, which may be one of files alone (kofn_p4src, kofn_mininet).

    Where it is not installed, a path that does not exist, with its name.
    """
    spec = find_spec(package)
    places = [*(spec.submodule_search_locations or ())] if spec else []
    return Path(places[0]) if places else Path("/not installed") / package
