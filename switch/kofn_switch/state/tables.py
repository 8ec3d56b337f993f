"""One table as the control plane writes it: checks, a key's one normal form, and its form in the native table.

The native table holds the entries; a higher priority (or a longer prefix) is better.
"""

from collections.abc import Sequence
from typing import NamedTuple

from kofn_switch.compiler.codegen.layout import mask_of
from kofn_switch.compiler.codegen.matching import Pair, entry_limbs, key_limbs, mask_words, numbers, stored_match
from kofn_switch.compiler.ir.program import Action, KeyField, Table
from kofn_switch.errors import InvalidEntry
from kofn_switch.state.actions import check_value, find_action, parameter_words
from kofn_switch.state.entries import Exact, Key, Lpm, Match, Optional, Range, Ternary

PRIORITY_MAX = (1 << 31) - 1  # P4Runtime's


class Stored(NamedTuple):
    """The identity of an entry: its key in the normal form and in the native table's form (`mask`, `match`, `order`).

    The entry with the lowest order is the best.
    """

    key: Key
    priority: int
    mask: list[int]
    match: list[int]
    order: int

    def __str__(self) -> str:
        return show_key(self.key) + (f" of priority {self.priority}" if self.priority else "")


class TableState:
    """A table's rules, and its default action."""

    def __init__(self, table: Table) -> None:
        """Start with the program's default action."""
        self.table = table
        self.ordered, self.prioritised = table.ordered, table.prioritised  # cached: every entry needs them
        self.actions = {action.name: action for action in table.actions}
        self.limbs = entry_limbs(table)
        self.by_id = {action.id: action for action in table.actions}
        self.default = self.initial_default

    @property
    def initial_default(self) -> tuple[Action, tuple[int, ...]] | None:
        """The program's default action; None: a miss does nothing."""
        if self.table.default_action is None:
            return None
        return self.by_id[self.table.default_action], self.table.default_parameters

    @property
    def capacity(self) -> int:
        return max(self.table.size, len(self.table.entries or ()))

    def action(self, name: str, parameters: Sequence[int]) -> Action:
        """Check the parameters of an action and return the action. Raise InvalidEntry."""
        return find_action(f"table {self.table.name}", self.actions, name, parameters)

    def stored(self, key: Key, priority: int) -> Stored:
        """Check the key and the priority, and return the entry's identity. Raise InvalidEntry."""
        self._check_priority(priority)
        normal, pairs = self.normal(key)
        mask, match = mask_words(self.table, pairs), stored_match(self.table, pairs)
        return Stored(normal, priority, mask, match, self._order(pairs, priority))

    def normal(self, key: Key) -> tuple[Key, tuple[Pair, ...]]:
        """Return the key in its one normal form, and as pairs of numbers. Raise InvalidEntry."""
        if len(key) != len(self.table.key):
            raise InvalidEntry(f"the key of table {self.table.name} has {self._fields()}, not {len(key)} fields")
        both = [_match(self.table, field, match) for field, match in zip(self.table.key, key, strict=True)]
        return tuple(match for match, _ in both), tuple(pair for _, pair in both)

    def _check_priority(self, priority: int) -> None:
        if self.prioritised and not 0 < priority <= PRIORITY_MAX:
            raise InvalidEntry(
                f"entries of table {self.table.name} need a priority above 0 and below 2**31, not {priority}"
            )
        if not self.prioritised and priority != 0:
            raise InvalidEntry(f"entries of table {self.table.name} have no priority: 0, not {priority}")

    def _fields(self) -> str:
        return "(" + ", ".join(f"{field.name}: {field.kind}" for field in self.table.key) + ")"

    def _order(self, pairs: Sequence[Pair], priority: int) -> int:
        if self.prioritised:
            return PRIORITY_MAX - priority
        fields = zip(self.table.key, pairs, strict=True)
        return sum(field.width - mask.bit_count() for field, (_, mask) in fields if field.kind == "lpm")

    def key_of(self, stored: Sequence[int]) -> Key:
        """Return the key from the first limbs of a native entry."""
        firsts = numbers(self.table.key, stored)
        seconds = numbers(self.table.key, stored[key_limbs(self.table) :]) if self.ordered else firsts
        return tuple(map(_stored_match, self.table.key, firsts, seconds))

    def priority_of(self, stored: Sequence[int]) -> int:
        return PRIORITY_MAX - (stored[2 * key_limbs(self.table)] >> 32) if self.prioritised else 0

    def words(self, action: Action, parameters: Sequence[int]) -> list[int]:
        """Return parameters as limbs, padded to the table's largest action."""
        return parameter_words(action, parameters, self.limbs)


def _stored_match(field: KeyField, first: int, second: int) -> Match:
    match field.kind:
        case "exact":
            return Exact(value=first)
        case "lpm":
            return Lpm(value=first, prefix_length=second.bit_count())
        case "range":
            return Range(low=first, high=second)
        case _:
            return Ternary(value=first, mask=second)


def show_key(key: Key) -> str:
    """Return a key for messages: `(1, 0x0a000000/8, *)`."""
    return "(" + ", ".join(_show(match) for match in key) + ")"


def _show(match: Match) -> str:
    match match:
        case Exact(value=value):
            return hex(value)
        case Ternary(value=value, mask=mask):
            return f"{value:#x} &&& {mask:#x}"
        case Lpm(value=value, prefix_length=length):
            return f"{value:#x}/{length}"
        case Range(low=low, high=high):
            return f"{low:#x}..{high:#x}"
        case Optional(value=value):
            return "*" if value is None else hex(value)


def _match(table: Table, field: KeyField, match: Match) -> tuple[Match, Pair]:
    """Return a match in normal form, and as (value, mask) or (low, high)."""
    what, ones = f"field {field.name} of table {table.name}", mask_of(field.width)
    match match, field.kind:
        case Exact(value=value), "exact":
            check_value(value, field.width, what)
            return match, (value, ones)
        case Lpm(value=value, prefix_length=length), "lpm":
            if not 0 <= length <= field.width:
                raise InvalidEntry(f"{what} must have a prefix of 0..{field.width} bits, got {length}")
            return match, _masked(value, ones ^ (ones >> length), field, what)
        case Ternary(value=value, mask=mask), "ternary":
            return match, _masked(value, mask, field, what)
        case Optional(value=value), "ternary":
            mask = 0 if value is None else ones
            return Ternary(value=value or 0, mask=mask), _masked(value or 0, mask, field, what)
        case Range(low=low, high=high), "range":
            check_value(low, field.width, what)
            check_value(high, field.width, what)
            if low > high:
                raise InvalidEntry(f"{what} is the empty range {low:#x}..{high:#x}")
            return match, (low, high)
    raise InvalidEntry(f"{what} is matched {field.kind}, not {type(match).__name__.lower()}")


def _masked(value: int, mask: int, field: KeyField, what: str) -> Pair:
    check_value(value, field.width, what)
    check_value(mask, field.width, f"the mask of {what}")
    if value & ~mask:
        raise InvalidEntry(f"{what} is {value:#x}, with bits outside its mask {mask:#x}")
    return value, mask


def const_key(table: Table, pairs: Sequence[Pair]) -> Key:
    """Return the key of a const entry, without bits outside the mask."""
    result: list[Match] = []
    for field, (first, second) in zip(table.key, pairs, strict=True):
        ones = mask_of(field.width)
        match field.kind:
            case "exact":
                result.append(Exact(value=first))
            case "lpm":
                result.append(Lpm(value=first & (ones ^ (ones >> second)), prefix_length=second))
            case "range":
                result.append(Range(low=first, high=second))
            case _:
                result.append(Ternary(value=first & second, mask=second))
    return tuple(result)


def refuse_const(table: Table) -> None:
    """Raise InvalidEntry for a table with const entries."""
    if table.entries is not None:
        raise InvalidEntry(f"table {table.name} has const entries: they cannot be changed, none can be added")
