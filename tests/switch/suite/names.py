"""Finds the objects that scripts name: tables, actions and keys by the end of their names, values
by the kind of match.
"""

import operator
from collections.abc import Iterable, Mapping
from typing import Protocol, TypeVar

from kofn_switch.compiler.codegen.layout import mask_of
from kofn_switch.compiler.ir.program import Action, KeyField, Program, Table
from kofn_switch.state.entries import Entry, Exact, GroupRef, Lpm, Match, Member, MemberRef, Optional, Range, Ternary
from tests.switch.suite.stf import Add, AddMember, Call, PlaceError, number

T = TypeVar("T")
BITS = {"0x": 4, "0o": 3, "0b": 1}
CONDITIONS = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


class Named(Protocol):
    """An object with a name."""

    @property
    def name(self) -> str: ...


N = TypeVar("N", bound=Named)


def by_name(items: Iterable[N]) -> dict[str, N]:
    return {item.name: item for item in items}


def named(name: str, objects: Mapping[str, T], what: str) -> T:
    """Return the object of that name, or the only one whose name ends so. Raises PlaceError."""
    if name in objects:
        return objects[name]
    ends = [item for full, item in objects.items() if full.endswith(name)]
    if len(ends) != 1:
        raise PlaceError(f"{what} {name} is {len(ends)} of {', '.join(objects) or 'none'}")
    return ends[0]


def table(program: Program, name: str) -> Table:
    """Return a table by its name or the end of it."""
    return named(name, by_name(program.tables), "table")


def call(item: Table, written: Call) -> tuple[Action, tuple[int, ...]]:
    """Return a table's action and its parameters in order."""
    return _call(item.actions, written, f"action of table {item.name}")


def member(program: Program, written: AddMember) -> Member:
    """Return the member that a script adds."""
    profile = named(written.profile, program.profiles, "action profile").name
    actions = {action.name: action for table in program.tables if table.profile == profile for action in table.actions}
    action, parameters = _call(list(actions.values()), written.call, f"action of profile {profile}")
    return Member(profile=profile, id=written.id, action=action.name, parameters=parameters)


def _call(actions: Iterable[Action], written: Call, what: str) -> tuple[Action, tuple[int, ...]]:
    action = named(written.action, by_name(actions), what)
    wanted = [parameter.name for parameter in action.parameters]
    if sorted(wanted) != sorted(written.arguments):
        raise PlaceError(f"action {action.name} takes {wanted}, not {list(written.arguments)}")
    return action, tuple(written.arguments[name] for name in wanted)


def entry(program: Program, add: Add) -> Entry:
    """Return the entry that a script adds; missing key fields match all, exact ones zero."""
    item = table(program, add.table)
    written = {_key_field(item, name).name: value for name, value in add.key.items()}
    key = tuple(_match(field, written.get(field.name)) for field in item.key)
    priority = add.priority + 1 if item.prioritised else 0
    if item.profile is not None:
        (number,) = add.call.arguments.values()
        via = MemberRef(member=number) if add.call.action == "member" else GroupRef(group=number)
        return Entry(table=item.name, key=key, priority=priority, via=via)
    action, parameters = call(item, add.call)
    return Entry(table=item.name, key=key, priority=priority, action=action.name, parameters=parameters)


def _key_field(item: Table, name: str) -> KeyField:
    fields = {field.name: field for field in item.key}
    head, dollar, tail = name.partition("$")  # extra$0.h is extra[0].h
    digits = tail.split(".")[0]
    if dollar and digits.isdigit():
        name = f"{head}[{digits}]{tail[len(digits) :]}"
    for candidate in (name, f"{name}$", f"{name}.$valid$", name.removesuffix("valid") + "$valid$"):
        if candidate in fields:
            return fields[candidate]
    return named(name, fields, f"key field of table {item.name}")


def _match(field: KeyField, value: str | None) -> Match:
    match field.kind:
        case "exact" | "valid":
            return Exact(value=number(value or "0"))
        case "lpm":
            return _lpm(field, value or "0/0")
        case "range":
            low, _, high = (value or f"0->{mask_of(field.width)}").partition("->")
            return Range(low=number(low), high=number(high or low))
        case "optional":
            return Optional(value=None if value is None else number(value))
    return _ternary(field, value)


def _ternary(field: KeyField, value: str | None) -> Ternary:
    if value is None:
        return Ternary(value=0, mask=0)
    ones = mask_of(field.width)
    if "&&&" in value:
        first, _, mask = value.partition("&&&")
        return Ternary(value=number(first) & number(mask), mask=number(mask))
    bits = BITS.get(value[:2].lower())
    if bits is None:
        return Ternary(value=number(value), mask=ones)
    digits = value[2:]
    mask = int("".join("0" if digit == "*" else "1" for digit in digits), 2**bits) * (2**bits - 1)
    return Ternary(value=number(value.replace("*", "0")) & mask & ones, mask=mask & ones)


def _lpm(field: KeyField, value: str) -> Lpm:
    first, slash, length = value.partition("/")
    ones = mask_of(field.width)
    if slash:
        prefix = number(length)
    else:
        bits = BITS.get(first[:2].lower(), 0)
        prefix = bits * (len(first) - 2 - first.count("*")) if bits else field.width
        prefix = min(prefix, field.width)
    return Lpm(value=number(first.replace("*", "0")) & (ones ^ (ones >> prefix)), prefix_length=prefix)
