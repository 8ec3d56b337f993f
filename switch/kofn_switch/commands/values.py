"""Values in commands: numbers and addresses in, hexadecimal digits and keys out."""

import ipaddress
from collections.abc import Callable, Sequence
from dataclasses import replace

from kofn_switch.commands.session import CommandError, number
from kofn_switch.compiler.ir.program import Action, KeyField, Table
from kofn_switch.state.entries import Exact, Key, Lpm, Match, Optional, Range, Ternary
from kofn_switch.state.tables import PRIORITY_MAX

MANY = 1 << 10  # arguments

RULE, STARS = "=" * 10, "*" * 10
"""Lines between the parts of a dump."""


def value(text: str, width: int) -> int:
    """Return a number, or an address of the field's width, as BMv2's CLI reads it.

    An octet may have fewer digits than usual, or leading zeros. Raises CommandError.
    """
    try:
        if width == 48 and ":" in text:
            return _address(text.split(":"), 6, base=16)
        if width == 32 and "." in text:
            return _address(text.split("."), 4, base=10)
        if width == 128 and ":" in text:
            return int(ipaddress.IPv6Address(text))
        found = int(text, 0)
    except ValueError as error:
        raise CommandError(f"Error while parsing {text} - not a number, nor an address of {width} bits") from error
    if not 0 <= found < 1 << width:
        raise CommandError(f"Error while parsing {text} - Parameter is too large: the field has {width} bits")
    return found


def _address(octets: Sequence[str], count: int, *, base: int) -> int:
    """Return the number that the octets form. Raise ValueError for a wrong number of octets, or an octet that is no
    number."""
    if len(octets) != count:
        raise ValueError(f"an address must have {count} octets, got {len(octets)}")
    return int.from_bytes(bytes(int(octet, base) for octet in octets))


def parameters(action: Action, words: Sequence[str]) -> tuple[int, ...]:
    """Return the parameters, which may follow an arrow (=>).  Raises CommandError."""
    words = words[1:] if words[:1] == ["=>"] else words
    if len(words) != len(action.parameters):
        raise CommandError(f"Action {action.name} needs {len(action.parameters)} parameters")
    return tuple(value(word, item.width) for word, item in zip(words, action.parameters, strict=True))


def key(table: Table, words: Sequence[str]) -> Key:
    """Return the key as typed: a value may have bits outside its prefix or mask."""
    if len(words) != len(table.key):
        raise CommandError(f"Table {table.name} needs {len(table.key)} key fields")
    return tuple(_match(field, word) for field, word in zip(table.key, words, strict=True))


def normal(table: Table, typed: Key) -> Key:
    """Return the key without bits outside of prefixes and masks."""
    return tuple(_normal(field.width, match) for field, match in zip(table.key, typed, strict=True))


def _normal(width: int, match: Match) -> Match:
    match match:
        case Lpm(value=found, prefix_length=length):
            beyond = width - length
            return replace(match, value=found >> beyond << beyond)
        case Ternary(value=found, mask=mask):
            return replace(match, value=found & mask)
        case _:
            return match


def priority_of(table: Table, word: str) -> int:
    """Convert BMv2's priority (the lowest wins) to the engine's (the highest wins); 0 if the table has no
    priorities."""
    return PRIORITY_MAX - number(word, "priority", range(PRIORITY_MAX)) if table.prioritised else 0


def _match(field: KeyField, word: str) -> Match:
    match field.kind:
        case "lpm":
            text, length = _pair(word, "/", "a prefix length, as in 10.0.0.0/8")
            kept = number(length, "prefix length", range(field.width + 1))
            return Lpm(value=value(text, field.width), prefix_length=kept)
        case "ternary":
            text, mask = _pair(word, "&&&", "a mask, as in 0x800&&&0xfff")
            return Ternary(value=value(text, field.width), mask=value(mask, field.width))
        case "range":
            low, high = _pair(word, "->", "two bounds, as in 1->9")
            return Range(low=value(low, field.width), high=value(high, field.width))
        case _:
            return Exact(value=value(word, field.width))


def _pair(word: str, between: str, what: str) -> tuple[str, str]:
    first, found, second = word.partition(between)
    if not found:
        raise CommandError(f"Invalid match key: {word} needs {what}")
    return first, second


def digits(number: int, width: int) -> str:
    """Return hexadecimal digits, two for each byte of the width."""
    return f"{number:0{(width + 7) // 8 * 2}x}"


def short(number: int) -> str:
    """Return hexadecimal digits, no more bytes than the number needs."""
    return digits(number, max(number.bit_length(), 1))


def octets(number: int, width: int) -> str:
    """Return hexadecimal digits, with a colon between bytes."""
    return bytes.fromhex(digits(number, width)).hex(":")


def kind_of(table: Table) -> str:
    """Return a table's kind: the most general kind of its fields."""
    kinds = [field.kind for field in table.key]
    return next((kind for kind in ("range", "ternary", "lpm") if kind in kinds), "exact")


def spelled(field: KeyField, match: Match, write: Callable[[int, int], str] = digits) -> str:
    """Return one field of an entry as text, its numbers by `write`."""
    width = field.width
    match match:
        case Exact(value=found):
            return write(found, width)
        case Lpm(value=found, prefix_length=length):
            return f"{write(found, width)}/{length}"
        case Ternary(value=found, mask=mask):
            return f"{write(found, width)} &&& {write(mask, width)}"
        case Range(low=low, high=high):
            return f"{write(low, width)} -> {write(high, width)}"
        case Optional(value=optional):
            ones = 0 if optional is None else (1 << width) - 1
            return f"{write(optional or 0, width)} &&& {write(ones, width)}"
