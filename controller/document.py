"""A Status message as JSON: names and order as in rpc/kofn.proto, nothing left out, every number a number.

protobuf's own conversion makes strings of 64-bit numbers and orders names by what is set.
"""

from collections.abc import Iterable
from typing import Any

from google.protobuf.message import Message


def document(message: Message) -> dict[str, Any]:
    """All fields of a message that has scalars, repeated messages and maps of scalars (a map's keys are sorted)."""
    return {field.name: _plain(getattr(message, field.name)) for field in message.DESCRIPTOR.fields}


def k_document(status: dict[str, Any]) -> dict[str, Any]:
    """The part of a status that explains k."""
    return _part(status, ("k", "live", "workers", "objective", "iteration", "expected", "changes"))


def lambda_document(status: dict[str, Any]) -> dict[str, Any]:
    """The part of a status that holds the model."""
    return _part(status, ("iteration", "service_s", "event_s", "worker"))


def _part(status: dict[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """These fields, in this order."""
    return {name: status[name] for name in names}


def _plain(value: Any) -> Any:
    """What `json` can write."""
    if isinstance(value, (str, bool, int, float)):
        return value
    if hasattr(value, "items"):
        return dict(sorted(value.items()))
    return [document(entry) for entry in value]
