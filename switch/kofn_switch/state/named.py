"""A program's objects by name."""

from collections.abc import Mapping
from typing import TypeVar

from kofn_switch.errors import UnknownObject

T = TypeVar("T")


def named(objects: Mapping[str, T], kind: str, name: str) -> T:
    """Return the object of that name. Raise UnknownObject."""
    if name not in objects:
        raise UnknownObject(f"the program has no {kind} {name}; it has {', '.join(objects) or 'none'}")
    return objects[name]
