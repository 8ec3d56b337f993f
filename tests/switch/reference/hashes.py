"""Hashes over fields and payload, and the checksums made with them."""

import struct
from collections.abc import Callable, Sequence
from functools import partial

from kofn_switch.compiler.ir.expressions import Expression, FieldOf
from kofn_switch.compiler.ir.program import Calculation, Checksum
from tests.switch.reference.expressions import Scope
from tests.switch.reference.packet import VALID, Packet, to_bytes, undefined, wrap


def calculate(calculation: Calculation, scope: Scope, packet: Packet) -> int:
    """Return the hash over the inputs without gaps, padded with zeros to a whole byte, then the payload if it is an
    input."""
    if calculation.algorithm not in ALGORITHMS:
        undefined(f"hash algorithm {calculation.algorithm}")
    data = to_bytes("".join(_bits(scope, *part) for part in calculation.inputs if part is not None))
    if None in calculation.inputs:
        data += packet.payload
    return ALGORITHMS[calculation.algorithm](data)


def _bits(scope: Scope, expression: Expression, width: int) -> str:
    """Return an input as 0 and 1; fields of invalid headers are left out."""
    if isinstance(expression, FieldOf) and expression.field != VALID:
        instance = scope.headers[expression.header]
        return instance.bits(expression.field) if instance.valid else ""
    return format(wrap(scope.value(expression), width), f"0{width}b")


def is_wrong(checksum: Checksum, scope: Scope, packet: Packet) -> bool:
    """Return whether the field is valid, its condition holds, and its value is wrong."""
    instance = scope.headers[checksum.target.header]
    if not checksum.verify or not instance.valid:
        return False
    if checksum.condition is not None and not scope.truth(checksum.condition):
        return False
    return calculate(checksum.calculation, scope, packet) != instance.get(checksum.target.field)


def update(checksums: Sequence[Checksum], scope: Scope, packet: Packet) -> None:
    """Set the fields whose conditions hold to their checksums, in order."""
    for checksum in checksums:
        if checksum.update and (checksum.condition is None or scope.truth(checksum.condition)):
            scope.assign(checksum.target, calculate(checksum.calculation, scope, packet))


# Algorithms


def csum16(data: bytes) -> int:
    """Return the internet checksum (RFC 1071)."""
    data += bytes(len(data) % 2)
    total = sum(struct.unpack(f">{len(data) // 2}H", data))
    while total > 0xFFFF:
        total = (total & 0xFFFF) + (total >> 16)
    return 0xFFFF - total


def xor(data: bytes, *, size: int) -> int:
    """Return the exclusive or of words of `size` bytes, the last padded with zeros."""
    result = 0
    for at in range(0, len(data), size):
        result ^= int.from_bytes(data[at : at + size].ljust(size, b"\0"), "big")
    return result


def identity(data: bytes) -> int:
    return int.from_bytes(data[:8], "big")


def crc(data: bytes, *, width: int, polynomial: int, start: int, reflected: bool, final: int) -> int:
    """Return a cyclic redundancy check, computed bit by bit."""
    rest = start
    for byte in data:
        rest ^= (_mirrored(byte, 8) if reflected else byte) << (width - 8)
        for _ in range(8):
            rest = rest << 1 ^ (polynomial if rest >> (width - 1) else 0)
            rest &= (1 << width) - 1
    return (_mirrored(rest, width) if reflected else rest) ^ final


def _mirrored(value: int, width: int) -> int:
    return int(format(value, f"0{width}b")[::-1], 2)


CRC16 = partial(crc, width=16, polynomial=0x8005, start=0, reflected=True, final=0)
CRC32 = partial(crc, width=32, polynomial=0x04C11DB7, start=0xFFFFFFFF, reflected=True, final=0xFFFFFFFF)
ALGORITHMS: dict[str, Callable[[bytes], int]] = {
    "csum16": csum16,
    "cksum16": csum16,
    "xor16": partial(xor, size=2),
    "xor32": partial(xor, size=4),
    "identity": identity,
    "crc8_custom": partial(crc, width=8, polynomial=0x07, start=0, reflected=False, final=0),
    "crc16": CRC16,
    "crc16_custom": CRC16,
    "crc32": CRC32,
    "crc32_custom": CRC32,
    "crc64_custom": partial(crc, width=64, polynomial=0x1B, start=0, reflected=True, final=0),
    "crcCCITT": partial(crc, width=16, polynomial=0x1021, start=0xFFFF, reflected=False, final=0),
}
