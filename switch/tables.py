"""The entries of one table as the control plane knows them, and their checks.

The native table holds the same entries in the form that look-ups need; this one answers reads and decides places and
ranks.  Ordered tables keep the higher priority (or the longer prefix) in front.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from switch.compiler.layout import limbs, mask_of
from switch.compiler.matching import words
from switch.compiler.program import Action, KeyField, Table
from switch.entries import Entry, Exact, Key, Lpm, Match, Optional, Range, Ternary
from switch.errors import EntryExists, EntryNotFound, InvalidEntry, TableFull

Pair = tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """An entry as it was written (its key may not be in the normal form) and its place in the native table."""

    entry: Entry
    number: int
    order: int  # the lower is searched first


class TableState:
    """Entries by key, free places, ranks."""

    def __init__(self, table: Table) -> None:
        """Empty; the default is the program's."""
        self.table = table
        self.actions = {action.name: action for action in table.actions}
        self.placed: dict[tuple[Key, int], Placed] = {}
        self._free = list(range(max(1, table.size, len(table.entries or ())) - 1, -1, -1))
        self._ranks: list[tuple[int, int]] = []  # (order, number)
        self._defaults = {action.id: action for action in table.actions}
        self.default = self.initial_default

    @property
    def initial_default(self) -> tuple[Action, tuple[int, ...]]:
        """The program's default action."""
        assert self.table.default_action is not None
        return self._defaults[self.table.default_action], self.table.default_parameters

    @property
    def capacity(self) -> int:
        """Entries that fit."""
        return max(self.table.size, len(self.table.entries or ()))

    def action(self, name: str, parameters: Sequence[int]) -> Action:
        """The action, its parameters checked.  Raises InvalidEntry."""
        if name not in self.actions:
            raise InvalidEntry(f"table {self.table.name} has no action {name}; it has {', '.join(self.actions)}")
        action = self.actions[name]
        if len(parameters) != len(action.parameters):
            expected = ", ".join(f"{item.name}: bit<{item.width}>" for item in action.parameters)
            raise InvalidEntry(f"action {name} takes ({expected}), not {len(parameters)} parameters")
        for value, item in zip(parameters, action.parameters, strict=True):
            _check_value(value, item.width, f"parameter {item.name} of action {name}")
        return action

    def key(self, key: Key, priority: int) -> tuple[Key, tuple[Pair, ...]]:
        """The key in its one normal form and as pairs of numbers.  Raises InvalidEntry."""
        if len(key) != len(self.table.key):
            raise InvalidEntry(f"the key of table {self.table.name} has {self._fields()}, not {len(key)} fields")
        if self.table.prioritised and priority <= 0:
            raise InvalidEntry(f"entries of table {self.table.name} need a priority above 0, not {priority}")
        if not self.table.prioritised and priority != 0:
            raise InvalidEntry(f"entries of table {self.table.name} have no priority: 0, not {priority}")
        both = [_match(self.table, field, match) for field, match in zip(self.table.key, key, strict=True)]
        return tuple(match for match, _ in both), tuple(pair for _, pair in both)

    def _fields(self) -> str:
        return "(" + ", ".join(f"{field.name}: {field.kind}" for field in self.table.key) + ")"

    def find(self, key: Key, priority: int) -> Placed:
        """The entry with that normal key.  Raises EntryNotFound."""
        if (key, priority) not in self.placed:
            raise EntryNotFound(f"table {self.table.name} has no entry {show_key(key)}{_show_priority(priority)}")
        return self.placed[key, priority]

    def place(self, entry: Entry, key: Key) -> tuple[Placed, int]:
        """Take a free place; returns it and its rank; `key` is the normal form.  Raises EntryExists, TableFull."""
        if (key, entry.priority) in self.placed:
            at = f"{show_key(key)}{_show_priority(entry.priority)}"
            raise EntryExists(f"table {self.table.name} has an entry {at} already")
        if len(self.placed) >= self.capacity:
            raise TableFull(f"table {self.table.name} is full: {self.capacity} entries")
        placed = Placed(entry=entry, number=self._free.pop(), order=self._order(entry))
        self.placed[key, entry.priority] = placed
        if not self.table.ordered:
            return placed, 0
        rank = bisect_right(self._ranks, placed.order, key=lambda pair: pair[0])
        self._ranks.insert(rank, (placed.order, placed.number))
        return placed, rank

    def replace(self, placed: Placed, entry: Entry, key: Key) -> None:
        """Note another action for an entry."""
        new = Placed(entry=entry, number=placed.number, order=placed.order)
        self.placed[key, entry.priority] = new

    def remove(self, placed: Placed, key: Key) -> int:
        """Free an entry's place; returns the rank it had."""
        del self.placed[key, placed.entry.priority]
        self._free.append(placed.number)
        if not self.table.ordered:
            return 0
        rank = self._ranks.index((placed.order, placed.number))
        del self._ranks[rank]
        return rank

    def _order(self, entry: Entry) -> int:
        if self.table.prioritised:
            return -entry.priority
        return -sum(match.prefix_length for match in entry.key if isinstance(match, Lpm))

    def parameter_words(self, action: Action, parameters: Sequence[int]) -> list[int]:
        """Parameters as limbs, padded to the table's largest action."""
        own = [w for value, item in zip(parameters, action.parameters, strict=True) for w in words(value, item.width)]
        most = max((sum(limbs(item.width) for item in one.parameters) for one in self.table.actions), default=0)
        return own + [0] * (most - len(own))


def show_key(key: Key) -> str:
    """A key for messages: `(1, 0x0a000000/8, *)`."""
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


def _show_priority(priority: int) -> str:
    return f" of priority {priority}" if priority else ""


def _check_value(value: int, width: int, what: str) -> None:
    if not 0 <= value <= mask_of(width):
        raise InvalidEntry(f"{what} is {value:#x}; bit<{width}> holds 0..{mask_of(width):#x}")


def _match(table: Table, field: KeyField, match: Match) -> tuple[Match, Pair]:
    """A match in normal form and as (value, mask) or (low, high)."""
    what, ones = f"field {field.name} of table {table.name}", mask_of(field.width)
    match match, field.kind:
        case Exact(value=value), "exact":
            _check_value(value, field.width, what)
            return match, (value, ones)
        case Lpm(value=value, prefix_length=length), "lpm":
            if not 0 <= length <= field.width:
                raise InvalidEntry(f"{what} has a prefix of {length} bits; 0..{field.width} are allowed")
            return match, _masked(value, ones ^ (ones >> length), field, what)
        case Ternary(value=value, mask=mask), "ternary":
            return match, _masked(value, mask, field, what)
        case Optional(value=value), "ternary":
            mask = 0 if value is None else ones
            return Ternary(value=value or 0, mask=mask), _masked(value or 0, mask, field, what)
        case Range(low=low, high=high), "range":
            _check_value(low, field.width, what)
            _check_value(high, field.width, what)
            if low > high:
                raise InvalidEntry(f"{what} is the empty range {low:#x}..{high:#x}")
            return match, (low, high)
    raise InvalidEntry(f"{what} is matched {field.kind}, not {type(match).__name__.lower()}")


def _masked(value: int, mask: int, field: KeyField, what: str) -> Pair:
    _check_value(value, field.width, what)
    _check_value(mask, field.width, f"the mask of {what}")
    if value & ~mask:
        raise InvalidEntry(f"{what} is {value:#x}, with bits outside its mask {mask:#x}")
    return value, mask


def const_key(table: Table, pairs: Sequence[Pair]) -> Key:
    """The key of an entry that the program itself holds; bits outside the mask are cut."""
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
