"""Objects that clients number: multicast groups and clone sessions."""

from collections.abc import Collection, Mapping
from typing import TypeVar

import grpc
from finsy.proto import p4r

from kofn_switch.p4runtime.cells import UpdateType
from kofn_switch.p4runtime.refusal import Refused, invalid, not_found

T = TypeVar("T")


def check_write(kind: UpdateType, what: str, number: int, present: Collection[int], most: int) -> None:
    """Refuse numbers that are not 1..most, an INSERT of an existing object, and MODIFY and DELETE of a missing one."""
    if not 1 <= number <= most:
        raise invalid(f"{what} must be 1 to {most}, got {number}")
    if kind != p4r.Update.INSERT:
        _check_present(what, number, present)
    elif number in present:
        raise Refused(grpc.StatusCode.ALREADY_EXISTS, f"{what} {number} exists already; MODIFY it")


def selected(what: str, number: int, present: Mapping[int, T]) -> list[tuple[int, T]]:
    """Return the object of that number (NOT_FOUND if there is none), or all objects for 0, in order of their
    numbers."""
    if number:
        _check_present(what, number, present)
    return [(found, present[found]) for found in ([number] if number else sorted(present))]


def _check_present(what: str, number: int, present: Collection[int]) -> None:
    if number not in present:
        raise not_found(f"there is no {what} {number}; there are {sorted(present)}")
