"""P4Runtime's bytes fields as integers and back (specification, "Bytestrings").

A string that is read is big-endian, has at least one byte, and may have leading zeros; it is refused if its value needs
more bits than the field has. A string that is written is the shortest one. Signed values are two's complement with sign
extension.

The refusal is INVALID_ARGUMENT, as in BMv2. The specification requires OUT_OF_RANGE for strings in general, and
INVALID_ARGUMENT for every field with a string (matches, action parameters, replicas, P4Data, packet metadata).
"""

from kofn_switch.p4runtime.refusal import invalid


def encode(value: int) -> bytes:
    """Return the canonical string of an unsigned value; 0 is one zero byte."""
    return value.to_bytes(max(1, (value.bit_length() + 7) // 8), "big")


def decode(data: bytes, width: int, what: str) -> int:
    """Return the unsigned value of `data`, at most `width` bits; `what` names the field in errors."""
    if not data:
        raise invalid(f"{what} is an empty string; it needs at least one byte")
    value = int.from_bytes(data, "big")
    if value.bit_length() > width:
        raise invalid(f"{what} is {_show(value)}, which does not fit bit<{width}>")
    return value


def encode_signed(value: int) -> bytes:
    """Return the canonical string of a signed value."""
    bits = (value if value >= 0 else ~value).bit_length() + 1
    return value.to_bytes((bits + 7) // 8, "big", signed=True)


def decode_signed(data: bytes, width: int, what: str) -> int:
    """Return the signed value of `data` in int<width>. `what` names the field in errors (INVALID_ARGUMENT)."""
    if not data:
        raise invalid(f"{what} is an empty string; it needs at least one byte")
    value = int.from_bytes(data, "big", signed=True)
    if not -(1 << (width - 1)) <= value < 1 << (width - 1):
        raise invalid(f"{what} is {_show(value)}, which does not fit int<{width}>")
    return value


def _show(value: int) -> str:
    text = hex(value)
    return text if len(text) <= 40 else f"{text[:40]}... ({value.bit_length()} bits)"
