"""Match keys of TableEntry messages as the engine's keys and back (specification, "Match Format").

A don't-care field is left out of the message. An explicit don't-care match (mask 0, prefix 0, the full range) is
refused, and so are value bits outside the mask or prefix. Therefore reads return the keys as clients wrote them.
"""

from collections.abc import Callable, Iterable
from typing import assert_never

from finsy.proto import p4r

from kofn_switch.p4runtime.bytestring import decode, encode
from kofn_switch.p4runtime.p4info import KeyField, MatchKind, Table
from kofn_switch.p4runtime.refusal import choices, invalid
from kofn_switch.state.entries import Exact, Key, Lpm, Match, Optional, Range, Ternary

Decoder = Callable[[KeyField, p4r.FieldMatch, str], Match]


def decode_key(table: Table, matches: Iterable[p4r.FieldMatch]) -> Key:
    """Return the key of an entry, in the order of the table's key. Raise Refused with the field's name."""
    given: dict[int, Match] = {}
    for match in matches:
        field = table.key.get(match.field_id)
        if field.id in given:
            raise invalid(f"match field {field.name} of table {table.name} is given twice")
        given[field.id] = _decode(table, field, match)
    missing = [field.name for field in table.key if field.kind is MatchKind.EXACT and field.id not in given]
    if missing:
        raise invalid(f"table {table.name} needs a value for {', '.join(missing)}: exact fields cannot be left out")
    return tuple(given.get(field.id) or anything(field) for field in table.key)


def encode_key(table: Table, key: Key) -> list[p4r.FieldMatch]:
    """Return the messages of a key: without don't-care fields, in canonical byte strings."""
    pairs = zip(table.key, key, strict=True)
    return [_encode(field, match) for field, match in pairs if not _is_anything(field, match)]


def _decode(table: Table, field: KeyField, match: p4r.FieldMatch) -> Match:
    what = f"match field {field.name} of table {table.name}"
    kind = match.WhichOneof("field_match_type")
    if kind != field.kind.value:
        raise invalid(f"{what} is matched {field.kind.value}, not {kind or 'unset'}")
    return _DECODERS[field.kind](field, match, what)


def _exact(field: KeyField, match: p4r.FieldMatch, what: str) -> Match:
    return Exact(value=decode(match.exact.value, field.width, what))


def _lpm(field: KeyField, match: p4r.FieldMatch, what: str) -> Match:
    length = match.lpm.prefix_len
    if not 1 <= length <= field.width:
        raise invalid(f"{what} must have prefix length 1 to {field.width}, got {length}: leave the field out for 0")
    value = decode(match.lpm.value, field.width, what)
    if value & ((1 << (field.width - length)) - 1):
        raise invalid(f"{what} is 0x{value:x}/{length}: bits after the prefix must be 0")
    return Lpm(value=value, prefix_length=length)


def _ternary(field: KeyField, match: p4r.FieldMatch, what: str) -> Match:
    value = decode(match.ternary.value, field.width, what)
    mask = decode(match.ternary.mask, field.width, f"the mask of {what}")
    if mask == 0:
        raise invalid(f"{what} has mask 0: leave the field out to match everything")
    if value & ~mask:
        raise invalid(f"{what} is 0x{value:x} with mask 0x{mask:x}: value bits outside the mask must be 0")
    return Ternary(value=value, mask=mask)


def _range(field: KeyField, match: p4r.FieldMatch, what: str) -> Match:
    low = decode(match.range.low, field.width, f"the low bound of {what}")
    high = decode(match.range.high, field.width, f"the high bound of {what}")
    if low > high:
        raise invalid(f"{what} has low bound {low} above high bound {high}")
    if high - low == (1 << field.width) - 1:
        raise invalid(f"{what} spans all values: leave the field out to match everything")
    return Range(low=low, high=high)


def _optional(field: KeyField, match: p4r.FieldMatch, what: str) -> Match:
    return Optional(value=decode(match.optional.value, field.width, what))


_DECODERS: dict[MatchKind, Decoder] = {
    MatchKind.EXACT: _exact,
    MatchKind.LPM: _lpm,
    MatchKind.TERNARY: _ternary,
    MatchKind.RANGE: _range,
    MatchKind.OPTIONAL: _optional,
}


def anything(field: KeyField) -> Match:
    """Return the match for all values of a field that is not exact."""
    match field.kind:
        case MatchKind.LPM:
            return Lpm(value=0, prefix_length=0)
        case MatchKind.TERNARY:
            return Ternary(value=0, mask=0)
        case MatchKind.RANGE:
            return Range(low=0, high=(1 << field.width) - 1)
        case MatchKind.OPTIONAL:
            return Optional(value=None)
        case MatchKind.EXACT:
            raise invalid(f"match field {field.name} is exact and cannot be left out")
        case _:
            assert_never(field.kind)


def _is_anything(field: KeyField, match: Match) -> bool:
    if isinstance(match, Ternary):  # an optional field of a const entry is ternary, too
        return match.mask == 0
    return field.kind is not MatchKind.EXACT and match == anything(field)


def _encode(field: KeyField, match: Match) -> p4r.FieldMatch:
    message = p4r.FieldMatch(field_id=field.id)
    match match:
        case Exact(value=value):
            message.exact.value = encode(value)
        case Lpm(value=value, prefix_length=length):
            message.lpm.value, message.lpm.prefix_len = encode(value), length
        case Ternary(value=value) if field.kind is MatchKind.OPTIONAL:  # an optional field of a const entry
            message.optional.value = encode(value)
        case Ternary(value=value, mask=mask):
            message.ternary.value, message.ternary.mask = encode(value), encode(mask)
        case Range(low=low, high=high):
            message.range.low, message.range.high = encode(low), encode(high)
        case Optional(value=int(value)):
            message.optional.value = encode(value)
        case _:
            raise invalid(f"match field {field.name} holds {match}; {choices(k.value for k in MatchKind)} is known")
    return message
