"""Random changes of protobuf messages and JSON documents."""

import copy
import random
from collections.abc import Callable
from typing import Any, TypeVar

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

INTEGERS = (0, 1, 2, -1, 255, 65_536, 2**31 - 1, -(2**31), 2**31, 2**32 - 1, 2**63 - 1, 2**64 - 1)
M = TypeVar("M", bound=Message)
Field = Any
"""A FieldDescriptor, of which protobuf has two kinds."""

LEAVES: tuple[Any, ...] = (None, True, 0, 1, -1, 1000, 2**31, 2**64, 0.5, "", "x", "0x", "0xffffffffff", [], {}, [None])


def changed_message(message: M, chance: random.Random, changes: int) -> M:
    """Return a copy with `changes` changes."""
    result = type(message)()
    result.CopyFrom(message)
    for _ in range(changes):
        _change_message(result, chance)
    return result


def _change_message(message: Message, chance: random.Random) -> None:
    """Change one field of this message or of a nested one."""
    field: Field = chance.choice([each for each in message.DESCRIPTOR.fields if not _is_map(each)])
    inner = [(each, value) for each, value in message.ListFields() if each.message_type and not _is_map(each)]
    if inner and chance.random() < 0.75:
        each, value = chance.choice(inner)
        _change_message(chance.choice(value) if each.is_repeated else value, chance)
    elif field.is_repeated:
        _change_list(getattr(message, field.name), field, chance)
    elif chance.random() < 0.2:
        message.ClearField(field.name)
    elif field.message_type:
        getattr(message, field.name).SetInParent()
    else:
        setattr(message, field.name, _scalar(field, chance))


def _is_map(field: Field) -> bool:
    return bool(field.message_type and field.message_type.GetOptions().map_entry)


def _change_list(items: Any, field: Field, chance: random.Random) -> None:
    if items and chance.random() < 0.5:
        del items[chance.randrange(len(items))]
    elif field.message_type:
        new = items.add()
        if len(items) > 1:
            new.CopyFrom(items[chance.randrange(len(items) - 1)])
    else:
        items.append(_scalar(field, chance))


def _scalar(field: Field, chance: random.Random) -> Any:
    kind = field.cpp_type
    if kind == FieldDescriptor.CPPTYPE_STRING:
        if field.type == FieldDescriptor.TYPE_BYTES:
            return chance.randbytes(chance.choice((0, 1, 2, 4, 6, 16, 300)))
        return chance.choice(("", "x", "\u00e9" * 300))
    if kind == FieldDescriptor.CPPTYPE_BOOL:
        return chance.random() < 0.5
    if kind in (FieldDescriptor.CPPTYPE_DOUBLE, FieldDescriptor.CPPTYPE_FLOAT):
        return chance.choice((0.0, -1.0, float("nan"), 1e300))
    if kind == FieldDescriptor.CPPTYPE_ENUM:
        return chance.choice([value.number for value in field.enum_type.values])
    return chance.choice([value for value in INTEGERS if _fits(value, kind)])


def _fits(value: int, kind: int) -> bool:
    bits = 64 if kind in (FieldDescriptor.CPPTYPE_INT64, FieldDescriptor.CPPTYPE_UINT64) else 32
    if kind in (FieldDescriptor.CPPTYPE_UINT32, FieldDescriptor.CPPTYPE_UINT64):
        return 0 <= value < 1 << bits
    return -(1 << (bits - 1)) <= value < 1 << (bits - 1)


def changed_document(document: Any, chance: random.Random, changes: int) -> Any:
    """Return a copy with `changes` changes."""
    result = copy.deepcopy(document)
    for _ in range(changes):
        places = list(_places(result))
        container, key = chance.choice(places)
        chance.choice(EDITS)(container, key, chance, places)
    return result


def _places(node: Any) -> Any:
    """Return every (container, key or index) of a document."""
    items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for key, value in list(items):
        yield node, key
        yield from _places(value)


Places = list[tuple[Any, Any]]


def _remove(container: Any, key: Any, chance: random.Random, places: Places) -> None:
    del container[key]


def _replace(container: Any, key: Any, chance: random.Random, places: Places) -> None:
    container[key] = copy.deepcopy(chance.choice(LEAVES))


def _transplant(container: Any, key: Any, chance: random.Random, places: Places) -> None:
    """Put another part of the document into this place."""
    other, place = chance.choice(places)
    container[key] = copy.deepcopy(other[place])


def _repeat(container: Any, key: Any, chance: random.Random, places: Places) -> None:
    if isinstance(container, list):
        container.insert(key, copy.deepcopy(container[key]))


EDITS: tuple[Callable[[Any, Any, random.Random, Places], None], ...] = (
    _remove,
    _replace,
    _replace,
    _transplant,
    _repeat,
)
