"""Look-ups of ordered tables by property: the best entry wins, whatever came and went."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from switch.engine import Engine
from switch.entries import Entry, Exact, Key, Lpm, Match, Optional, Range, Ternary
from tests.switch.every_table import MISS, PROGRAM, probe


@pytest.fixture(scope="module")
def loaded() -> Engine:
    engine = Engine({})
    engine.load(PROGRAM.read_bytes())
    return engine


BYTES = st.integers(0, 3)
SMALL = st.integers(0, 7)


def lpms(width: int) -> st.SearchStrategy[Match]:
    def build(length: int, value: int) -> Match:
        return Lpm(value=(value << (width - 3)) >> (width - length) << (width - length), prefix_length=length)

    return st.builds(build, st.integers(0, 3), SMALL)


TERNARIES = st.builds(lambda value, mask: Ternary(value=value & mask, mask=mask), SMALL, SMALL)
RANGES = st.builds(lambda a, b: Range(low=min(a, b), high=max(a, b)), SMALL, SMALL)
OPTIONALS = st.builds(lambda value: Optional(value=value), st.none() | BYTES)
WIDE = st.builds(
    lambda high, low: Ternary(value=high << 64 | low, mask=(7 << 64 if high else 0) | (1 if low else 0)),
    st.sampled_from([0, 1, 5]),
    st.sampled_from([0, 1]),
)
KEYS = {
    "by_lpm": st.tuples(lpms(32), BYTES.map(lambda value: Exact(value=value))),
    "by_ternary": st.tuples(TERNARIES, lpms(16), BYTES.map(lambda value: Exact(value=value))),
    "by_range": st.tuples(RANGES, OPTIONALS, WIDE),
}
FIELDS = {"by_lpm": ("c", "a"), "by_ternary": ("c", "b", "a"), "by_range": ("b", "a", "wide")}
WIDTHS = {"a": 8, "b": 16, "c": 32, "wide": 128}
TOP_BITS = ("c", "b")  # values of lpm fields are compared in their first three bits


@st.composite
def histories(draw: st.DrawFn) -> tuple[str, list[tuple[bool, Key, int]], list[dict[str, int]]]:
    """A table, insertions (True) and deletions of (key, priority), and packets' fields."""
    table = draw(st.sampled_from(sorted(KEYS)))
    priorities = st.just(0) if table == "by_lpm" else st.integers(1, 3)
    steps = draw(st.lists(st.tuples(st.booleans() | st.just(True), KEYS[table], priorities), max_size=14))
    value = {
        "a": BYTES,
        "b": SMALL if table == "by_range" else SMALL.map(lambda top: top << 13),
        "c": SMALL if table == "by_ternary" else SMALL.map(lambda top: top << 29),
        "wide": st.sampled_from([0, 1, 1 << 64, 1 << 64 | 1, 5 << 64, 7 << 64 | 1]),
    }
    packets = st.lists(st.fixed_dictionaries({name: value[name] for name in FIELDS[table]}), min_size=1, max_size=6)
    return table, steps, draw(packets)


def holds(match: Match, value: int, width: int) -> bool:
    match match:
        case Exact(value=wanted):
            return value == wanted
        case Lpm(value=wanted, prefix_length=length):
            return value >> (width - length) == wanted >> (width - length)
        case Ternary(value=wanted, mask=mask):
            return value & mask == wanted
        case Range(low=low, high=high):
            return low <= value <= high
        case Optional(value=wanted):
            return wanted is None or value == wanted


@settings(max_examples=150, deadline=None)
@given(history=histories())
def test_the_best_entry_wins_whatever_came_and_went(
    loaded: Engine, history: tuple[str, list[tuple[bool, Key, int]], list[dict[str, int]]]
) -> None:
    table, steps, packets = history
    full = f"Tables.{table}"
    for old in loaded.entries(full):
        loaded.delete(full, old.key, old.priority)
    rows: dict[tuple[Key, int], int] = {}  # to the result
    for number, (inserted, key, priority) in enumerate(steps, 1):
        if inserted and (key, priority) not in rows:
            loaded.insert(Entry(table=full, key=key, priority=priority, action="Tables.answer", parameters=(number,)))
            rows[key, priority] = number
        elif rows and not inserted:
            victim = sorted(rows.items(), key=lambda row: row[1])[number % len(rows)][0]
            loaded.delete(full, *victim)
            del rows[victim]
    for fields in packets:
        assert probe(loaded, table, **fields)[0] in best(table, rows, fields)


def best(table: str, rows: dict[tuple[Key, int], int], fields: dict[str, int]) -> set[int]:
    """The results of the entries that may win: the order of equally good ones is not promised."""
    names = FIELDS[table]
    hits = [
        (priority or sum(match.prefix_length for match in key if isinstance(match, Lpm)), result)
        for (key, priority), result in rows.items()
        if all(holds(match, fields[name], WIDTHS[name]) for match, name in zip(key, names, strict=True))
    ]
    top = max((rank for rank, _ in hits), default=None)
    return {result for rank, result in hits if rank == top} or {MISS}
