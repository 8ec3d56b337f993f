"""What is wrong with a decoded TOML document, in the words of the file: table, key, what is there, what is allowed.

Walks the document along the types of run/config.py.  Knows none of their names; bounds that span keys are theirs.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

from msgspec import inspect

from run.errors import ConfigError

Number = inspect.IntType | inspect.FloatType

WORDS: dict[type[inspect.Type], str] = {
    inspect.IntType: "a whole number",
    inspect.FloatType: "a number",
    inspect.BoolType: "true or false",
    inspect.StructType: "a table",
}
"""TOML's own names of types; everything else is a string there."""


def check_document(document: Mapping[str, Any], kind: type) -> None:
    """Raise ConfigError for the first key that is unknown, missing, of a wrong type or out of its bounds."""
    root = inspect.type_info(kind)
    assert isinstance(root, inspect.StructType)
    _struct(document, root, "")


def allowed(kind: inspect.Type) -> str:
    """What a value may be: "a whole number (1 to 64)", "'fast' or 'scapy'"."""
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
    """Both ends: '1 to 64', 'more than 0', '0 to less than 1'; empty without any."""
    low = "" if kind.ge is None else f"{kind.ge:g}"
    low = low if kind.gt is None else f"more than {kind.gt:g}"
    high = "" if kind.le is None else f"{kind.le:g}"
    high = high if kind.lt is None else f"less than {kind.lt:g}"
    if kind.gt is not None and high:
        return f"{low}, at most {high}" if kind.lt is None else f"{low}, {high}"
    if low and high:
        return f"{low} to {high}"
    if high:
        return f"at most {high}"
    return f"{low} or more" if kind.ge is not None else low


def _something(kind: inspect.UnionType) -> inspect.Type:
    """The type of an optional key's value: TOML has no null."""
    return next(entry for entry in kind.types if not isinstance(entry, inspect.NoneType))


def _value(value: Any, kind: inspect.Type, path: str) -> None:
    match kind:
        case inspect.StructType():
            _struct(value, kind, path)
        case inspect.VarTupleType(item_type=item):
            _require(isinstance(value, list), value, kind, path)
            for index, entry in enumerate(value):
                _value(entry, item, f"{path}[{index}]")
        case inspect.UnionType():
            _value(value, _something(kind), path)
        case inspect.IntType() | inspect.FloatType():
            _number(value, kind, path)
        case _:
            _require(ACCEPTS[type(kind)](value, kind), value, kind, path)


def _struct(value: Any, kind: inspect.StructType, path: str) -> None:
    _require(isinstance(value, Mapping), value, kind, path)
    fields = {field.encode_name: field for field in kind.fields}
    for name in value:
        if name not in fields:
            where = f"{path} has the unknown key" if path else "unknown table or key"
            raise ConfigError(f"{where} {name!r}: {', '.join(fields)} are allowed")
    for name, field in fields.items():
        inner = f"{path}.{name}" if path else name
        if name in value and not _is_default(value[name], field):
            _value(value[name], field.type, inner)
        elif name not in value and field.required:
            raise ConfigError(f"{inner} is missing: {allowed(field.type)} is needed")


def _is_default(value: Any, field: inspect.Field) -> bool:
    """What is allowed by leaving a key out is allowed in words, even infinity."""
    return type(value) is type(field.default) and bool(value == field.default)


def _number(value: Any, kind: Number, path: str) -> None:
    numbers = (int,) if isinstance(kind, inspect.IntType) else (int, float)
    _require(isinstance(value, numbers) and not isinstance(value, bool), value, kind, path)
    ends: list[tuple[float | None, Callable[[float, float], bool]]] = [
        (kind.ge, lambda number, end: number >= end),
        (kind.gt, lambda number, end: number > end),
        (kind.le, lambda number, end: number <= end),
        (kind.lt, lambda number, end: number < end),
    ]
    if not all(end is None or holds(value, end) for end, holds in ends):  # false for nan as well
        raise ConfigError(f"{path} is {value}: {bounds(kind)} is allowed")
    if math.isinf(value) and (kind.ge, kind.gt) != (None, None) and kind.le is None and kind.lt is None:
        raise ConfigError(f"{path} is {value}: {bounds(kind)}, and finite, is allowed")


def _require(good: bool, value: Any, kind: inspect.Type, path: str) -> None:
    if not good:
        raise ConfigError(f"{path} is {_shown(value)}: {allowed(kind)} is allowed")


def _shown(value: Any) -> str:
    if isinstance(value, Mapping):
        return "a table"
    if isinstance(value, list):
        return "an array"
    return {True: "true", False: "false"}[value] if isinstance(value, bool) else repr(value)


ACCEPTS: dict[type[inspect.Type], Callable[[Any, Any], bool]] = {
    inspect.BoolType: lambda value, kind: isinstance(value, bool),
    inspect.StrType: lambda value, kind: isinstance(value, str),
    inspect.CustomType: lambda value, kind: isinstance(value, str),
    inspect.LiteralType: lambda value, kind: value in kind.values,
}
"""Types without parts or bounds, and what is one of them."""
