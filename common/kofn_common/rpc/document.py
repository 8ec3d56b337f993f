"""A message as JSON: names and order as in kofn.proto, no field left out, every number a number.

protobuf's own conversion makes strings of 64-bit numbers and orders names by the fields that are set.
"""

from typing import Any

from google.protobuf.message import Message


def document(message: Message) -> dict[str, Any]:
    """Return all fields of a message with scalars, repeated fields and maps of scalars (a map's keys are sorted)."""
    return {field.name: _plain(getattr(message, field.name)) for field in message.DESCRIPTOR.fields}


def _plain(value: Any) -> Any:
    """Return a value that `json` can write."""
    if isinstance(value, (str, bool, int, float)):
        return value
    if hasattr(value, "items"):
        return dict(sorted(value.items()))
    return [document(entry) if isinstance(entry, Message) else entry for entry in value]
