"""Describes a refusal of msgspec in the file's terms: table, key, the rule, the value found.

msgspec alone decides about validity, and stops at the first invalid value; its message has the place of that value.
This module looks up the value and its type there. It knows none of the schema's names; the schema checks bounds across
keys.

>>> import kofn
>>> kofn.Config.parse("[[straggler]]\\nworkers = [0, -1]\\nmean_ms = 1")
Traceback (most recent call last):
kofn_common.config.errors.ConfigError: straggler[0].workers[1] must be 0 to 1e+09, got -1
"""

import re
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import inspect

from kofn_common.config.errors import ConfigError
from kofn_common.config.suggestion import did_you_mean

Number = inspect.IntType | inspect.FloatType

WORDS: dict[type[inspect.Type], str] = {
    inspect.IntType: "a whole number",
    inspect.FloatType: "a number",
    inspect.BoolType: "true or false",
    inspect.StructType: "a table",
}
"""TOML's own names of types; all other values are strings there."""


MESSAGE = re.compile(r"(?P<what>.*?)( - at `\$\.?(?P<place>.*)`)?")
"""The text of a msgspec.ValidationError: "Expected `int`, got `str` - at `$.straggler[0].workers[1]`"."""

KEY = re.compile(r"Object (contains unknown|missing required) field `(?P<name>.*)`")


def refusal(error: msgspec.ValidationError, document: Mapping[str, Any], kind: type) -> ConfigError:
    """Return why `msgspec.convert(document, kind)` failed: an unknown or missing key, a wrong type, a value out of
    bounds."""
    message = MESSAGE.fullmatch(str(error))
    assert message
    place = message["place"] or ""
    value, found = _look_up(document, inspect.type_info(kind), place)
    if key := KEY.fullmatch(message["what"]):
        assert isinstance(found, inspect.StructType)
        return ConfigError(_key(key["name"], found, place, missing="missing" in key[1]))
    if isinstance(found, inspect.IntType | inspect.FloatType) and _is_number(value, found):
        return ConfigError(f"{place} must be {bounds(found)}, got {value}")
    names = found.values if isinstance(found, inspect.LiteralType) else ()
    meant = did_you_mean(value, map(str, names)) if isinstance(value, str) else ""
    return ConfigError(f"{place} must be {allowed(found)}, got {_shown(value)}{meant}")


def allowed(kind: inspect.Type) -> str:
    """Return the valid values as text: "a whole number (1 to 64)", "'fast' or 'scapy'"."""
    if isinstance(kind, inspect.UnionType):
        return allowed(_something(kind))
    if isinstance(kind, inspect.LiteralType):
        return " or ".join(map(repr, kind.values))
    if isinstance(kind, inspect.VarTupleType):
        tables = isinstance(kind.item_type, inspect.StructType)
        return "an array of tables" if tables else f"an array, each entry {allowed(kind.item_type)}"
    name = WORDS.get(type(kind), "a string")
    limits = bounds(kind) if isinstance(kind, Number) else ""
    return f"{name} ({limits})" if limits else name


def bounds(kind: Number) -> str:
    """Return both ends: '1 to 64', 'more than 0', '0 to less than 1'; empty if there are no bounds."""
    low = "" if kind.ge is None else f"{kind.ge:.7g}"
    low = low if kind.gt is None else f"more than {kind.gt:.7g}"
    high = "" if kind.le is None else f"{kind.le:.7g}"
    high = high if kind.lt is None else f"less than {kind.lt:.7g}"
    if kind.gt is not None and high:
        return f"{low}, at most {high}" if kind.lt is None else f"{low}, {high}"
    if low and high:
        return f"{low} to {high}"
    if high:
        return f"at most {high}"
    return f"{low} or more" if kind.ge is not None else low


def _something(kind: inspect.UnionType) -> inspect.Type:
    """Return the type of an optional key's value: TOML has no null."""
    return next(entry for entry in kind.types if not isinstance(entry, inspect.NoneType))


def _look_up(value: Any, kind: inspect.Type, place: str) -> tuple[Any, inspect.Type]:
    """Return the value at a place like straggler[0].mean_ms, and its type."""
    for name, index in re.findall(r"(\w+)|\[(\d+)\]", place):
        if index:
            assert isinstance(kind, inspect.VarTupleType)
            value, kind = value[int(index)], kind.item_type
        else:
            assert isinstance(kind, inspect.StructType)
            value, kind = value[name], _fields(kind)[name].type
        kind = _something(kind) if isinstance(kind, inspect.UnionType) else kind
    return value, kind


def _fields(kind: inspect.StructType) -> dict[str, inspect.Field]:
    return {field.encode_name: field for field in kind.fields}


def _key(name: str, table: inspect.StructType, place: str, *, missing: bool) -> str:
    """Return the message about a missing or unknown key, or table of the document itself."""
    fields = _fields(table)
    if missing:
        return f"{f'{place}.' if place else ''}{name} must be {allowed(fields[name].type)}, got none"
    where = f"a key of {place}" if place else "a table or key"
    return f"{where} must be one of {', '.join(fields)}, got {name!r}{did_you_mean(name, fields)}"


def _is_number(value: Any, kind: Number) -> bool:
    """Return whether a value has the type, so that only a bound can be wrong."""
    numbers = (int,) if isinstance(kind, inspect.IntType) else (int, float)
    return isinstance(value, numbers) and not isinstance(value, bool)


def _shown(value: Any) -> str:
    if isinstance(value, Mapping):
        return "a table"
    if isinstance(value, list):
        return "an array"
    return {True: "true", False: "false"}[value] if isinstance(value, bool) else repr(value)
