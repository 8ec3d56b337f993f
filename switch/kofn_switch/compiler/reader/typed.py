"""Checks records against their annotations, because a document may have text in place of a number."""

import functools
import types
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, Union, get_args, get_origin, get_type_hints

Fits = Callable[[Any], bool]


def check_types(record: object) -> None:
    """Raise TypeError with the field's name when a value in the record, at any depth, has another type."""
    kind: Any = type(record)
    _fits(kind)(record)


@functools.cache
def _fits(hint: Any) -> Fits:
    """Return a check of values against a type, at any depth: a class, a record, a union, a tuple or a mapping."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return _one_of(inner)
    if origin is tuple:
        return _all(_fits(inner[0])) if inner[1:] == (...,) else _each([_fits(part) for part in inner])
    if origin is Mapping:
        of_keys, of_values = map(_fits, inner)
        return lambda value: all(of_keys(key) and of_values(part) for key, part in value.items())
    return _record(hint) if is_dataclass(hint) else lambda value: type(value) is hint


def _one_of(kinds: tuple[Any, ...]) -> Fits:
    """Return a check for a union of types that have different classes."""
    by_class = {get_origin(kind) or kind: _fits(kind) for kind in kinds}
    return lambda value: (fits := by_class.get(type(value))) is not None and fits(value)


def _all(fits: Fits) -> Fits:
    return lambda value: type(value) is tuple and all(map(fits, value))


def _each(fits: list[Fits]) -> Fits:
    return lambda value: (
        type(value) is tuple
        and len(value) == len(fits)
        and all(one(part) for one, part in zip(fits, value, strict=True))
    )


def _record(kind: Any) -> Fits:
    """Return a check of a record. The check looks up the fields' types at its first call, because expressions hold
    expressions."""
    hints = get_type_hints(kind)
    checks = [(field.name, hints[field.name]) for field in fields(kind)]
    known: list[tuple[str, Fits]] = []

    def fits(value: Any) -> bool:
        if type(value) is not kind:
            return False
        if not known:
            known.extend((name, _fits(hint)) for name, hint in checks)
        for name, fits_field in known:
            if not fits_field(part := getattr(value, name)):
                raise TypeError(f"{kind.__name__}.{name} is {part!r}")
        return True

    return fits
