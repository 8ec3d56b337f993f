"""The entries of one table as the control plane knows them, and their checks.

The native table holds the same entries in the form that look-ups need; this one answers reads and decides places and
ranks: the higher priority (or the longer prefix) is the better.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from kofn.switch.compiler.codegen.layout import mask_of
from kofn.switch.compiler.codegen.matching import Pair, entry_limbs, masks_of
from kofn.switch.compiler.ir.program import Action, KeyField, Table
from kofn.switch.errors import EntryExists, EntryNotFound, InvalidEntry
from kofn.switch.state.actions import check_value, find_action, parameter_words
from kofn.switch.state.entries import Entry, Exact, Key, Lpm, Match, Optional, Range, Ternary
from kofn.switch.state.places import Places
from kofn.switch.state.profiles import Held

PRIORITY_MAX = (1 << 31) - 1  # P4Runtime's


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """An entry as it was written (its key may not be in the normal form) and its place in the native table."""

    entry: Entry
    number: int
    mask: int  # of an ordered table: the number of its mask
    held: Held | None = None  # what it holds of an action profile


@dataclass(slots=True)
class _Mask:
    """A mask that entries of an ordered table have, by its number in the native table."""

    number: int
    entries: int = 0


class TableState:
    """Entries by key, free places, masks."""

    def __init__(self, table: Table) -> None:
        """Empty; the default is the program's."""
        self.table = table
        self.ordered, self.prioritised = table.ordered, table.prioritised  # asked for with every entry
        self.actions = {action.name: action for action in table.actions}
        self.placed: dict[tuple[Key, int], Placed] = {}
        self._places = Places(f"table {table.name}", self.capacity)
        self._masks: dict[tuple[int, ...], _Mask] = {}
        self._mask_places = Places(f"table {table.name}", self.capacity)
        self.limbs = entry_limbs(table)
        self._defaults = {action.id: action for action in table.actions}
        self.default = self.initial_default

    @property
    def initial_default(self) -> tuple[Action, tuple[int, ...]] | None:
        """The program's default action; None: a miss does nothing."""
        if self.table.default_action is None:
            return None
        return self._defaults[self.table.default_action], self.table.default_parameters

    @property
    def capacity(self) -> int:
        return max(self.table.size, len(self.table.entries or ()))

    def action(self, name: str, parameters: Sequence[int]) -> Action:
        """The action, its parameters checked.  Raises InvalidEntry."""
        return find_action(f"table {self.table.name}", self.actions, name, parameters)

    def key(self, key: Key, priority: int) -> tuple[Key, tuple[Pair, ...]]:
        """The key in its one normal form and as pairs of numbers, the priority checked.  Raises InvalidEntry."""
        self._check_priority(priority)
        return self.normal(key)

    def normal(self, key: Key) -> tuple[Key, tuple[Pair, ...]]:
        """`key` without a priority."""
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

    def find(self, key: Key, priority: int) -> Placed:
        """The entry with that normal key.  Raises EntryNotFound."""
        if (key, priority) not in self.placed:
            raise EntryNotFound(f"table {self.table.name} has no entry {show_key(key)}{_show_priority(priority)}")
        return self.placed[key, priority]

    def place(self, entry: Entry, key: Key, pairs: Sequence[Pair], held: Held | None = None) -> Placed:
        """Take a free place; `key` is the normal form, `pairs` are its numbers.  Raises EntryExists, TableFull."""
        self.check_absent(key, entry.priority)
        number = self._places.take()
        mask = self._use_mask(masks_of(self.table, pairs)) if self.ordered else 0
        placed = Placed(entry=entry, number=number, mask=mask, held=held)
        self.placed[key, entry.priority] = placed
        return placed

    def check_absent(self, key: Key, priority: int) -> None:
        """Raises EntryExists when there is an entry with that normal key."""
        if (key, priority) in self.placed:
            raise EntryExists(f"table {self.table.name} has an entry {show_key(key)}{_show_priority(priority)} already")

    def replace(self, placed: Placed, entry: Entry, key: Key, held: Held | None = None) -> Placed:
        """Note another action for an entry."""
        new = Placed(entry=entry, number=placed.number, mask=placed.mask, held=held)
        self.placed[key, entry.priority] = new
        return new

    def remove(self, placed: Placed, key: Key, pairs: Sequence[Pair]) -> None:
        del self.placed[key, placed.entry.priority]
        self._places.free(placed.number)
        if self.ordered:
            self._leave_mask(masks_of(self.table, pairs))

    def _use_mask(self, masks: tuple[int, ...]) -> int:
        mask = self._masks.get(masks)
        if mask is None:
            mask = self._masks[masks] = _Mask(self._mask_places.take())
        mask.entries += 1
        return mask.number

    def _leave_mask(self, masks: tuple[int, ...]) -> None:
        mask = self._masks[masks]
        mask.entries -= 1
        if mask.entries == 0:
            self._mask_places.free(mask.number)
            del self._masks[masks]

    def rank(self, placed: Placed) -> int:
        """The lower is the better: by priority or prefix length, then by place."""
        return self._order(placed.entry) << 32 | placed.number

    def _order(self, entry: Entry) -> int:
        if self.prioritised:
            return PRIORITY_MAX - entry.priority
        widths = (field.width for field in self.table.key)
        matches = zip(entry.key, widths, strict=True)
        return sum(width - match.prefix_length for match, width in matches if isinstance(match, Lpm))

    def words(self, action: Action, parameters: Sequence[int]) -> list[int]:
        """Parameters as limbs, padded to the table's largest action."""
        return parameter_words(action, parameters, self.limbs)


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


def _match(table: Table, field: KeyField, match: Match) -> tuple[Match, Pair]:
    """A match in normal form and as (value, mask) or (low, high)."""
    what, ones = f"field {field.name} of table {table.name}", mask_of(field.width)
    match match, field.kind:
        case Exact(value=value), "exact":
            check_value(value, field.width, what)
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


def refuse_const(table: Table) -> None:
    """Raises InvalidEntry where the program has the entries."""
    if table.entries is not None:
        raise InvalidEntry(f"table {table.name} has const entries: they cannot be changed, none can be added")
