"""Random look-ups in ordered tables: the best entry wins after any inserts and deletes."""

import json
from random import Random

import pytest

from kofn_switch.engine.engine import Engine
from kofn_switch.errors import EntryNotFound
from kofn_switch.state.entries import Entry, Exact, Key, Lpm, Match, Optional, Range, Ternary
from tests.switch.every_table import MISS, NOTHING, PROGRAM, probe

FIELDS = {"by_lpm": ("c", "a"), "by_ternary": ("c", "b", "a"), "by_range": ("b", "a", "wide")}
WIDTHS = {"a": 8, "b": 16, "c": 32, "wide": 128}
STEPS, PACKETS = 60, 40


def lpm(draw: Random, width: int) -> Match:
    """Draw a match on the first three bits."""
    length = draw.randint(0, 3)
    return Lpm(value=draw.randrange(1 << length) << (width - length), prefix_length=length)


def ternary(draw: Random) -> Match:
    """Draw a match on the last three bits."""
    mask = draw.randrange(8)
    return Ternary(value=draw.randrange(8) & mask, mask=mask)


def wide_ternary(draw: Random) -> Match:
    """Draw a match on bits on both sides of the middle."""
    mask = draw.choice([0, 1, 3 << 63, 1 << 127])
    return Ternary(value=draw.choice([0, mask, 1 << 63]) & mask, mask=mask)


def draw_key(draw: Random, table: str) -> Key:
    match table:
        case "by_lpm":
            return lpm(draw, 32), Exact(value=draw.randrange(2))
        case "by_ternary":
            return ternary(draw), lpm(draw, 16), Exact(value=draw.randrange(2))
    low = draw.randrange(8)
    return Range(low=low, high=low + draw.randrange(3)), Optional(value=draw.choice([None, 0, 1])), wide_ternary(draw)


def draw_packet(draw: Random, table: str) -> dict[str, int]:
    values = {
        "a": draw.randrange(2),
        "b": draw.randrange(8) << (0 if table == "by_range" else 13),
        "c": draw.randrange(8) << (0 if table == "by_ternary" else 29),
        "wide": draw.choice([0, 1, 3 << 63, 1 << 63, 1 << 127 | 1]),
    }
    return {name: values[name] for name in FIELDS[table]}


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


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("table", FIELDS)
def test_best_entry_wins_after_any_changes(engine: Engine, table: str, seed: int) -> None:
    draw, full = Random(seed), f"Tables.{table}"
    rows: dict[tuple[Key, int], int] = {}  # by key: the result
    for number in range(1, STEPS + 1):
        key, priority = draw_key(draw, table), 0 if table == "by_lpm" else draw.randint(1, 4)
        if (key, priority) not in rows:
            engine.insert(Entry(table=full, key=key, priority=priority, action="Tables.answer", parameters=(number,)))
            rows[key, priority] = number
        if draw.random() < 0.4:
            victim = draw.choice(sorted(rows, key=lambda row: rows[row]))
            engine.delete(full, *victim)
            del rows[victim]
        if number % 5 == 0:
            for fields in (draw_packet(draw, table) for _ in range(PACKETS)):
                assert probe(engine, table, **fields)[0] in best(table, rows, fields)


def best(table: str, rows: dict[tuple[Key, int], int], fields: dict[str, int]) -> set[int]:
    """Return the results of the entries that may win; the order of equally good ones is unspecified."""
    names = FIELDS[table]
    hits = [
        (priority or sum(match.prefix_length for match in key if isinstance(match, Lpm)), result)
        for (key, priority), result in rows.items()
        if all(holds(match, fields[name], WIDTHS[name]) for match, name in zip(key, names, strict=True))
    ]
    top = max((rank for rank, _ in hits), default=None)
    return {result for rank, result in hits if rank == top} or {MISS}


@pytest.mark.slow
def test_miss_does_nothing_without_a_default_action() -> None:
    program = json.loads(PROGRAM.read_bytes())
    tables = {table["name"]: table for table in program["pipelines"][0]["tables"]}
    exact, part = tables["Tables.by_exact"], tables["Tables.by_part"]
    del exact["default_entry"], part["default_entry"]
    exact["base_default_next"] = exact["next_tables"]["Tables.answer"]  # the same as after a hit
    silent = Engine({})
    silent.load(json.dumps(program).encode())
    assert silent.default("Tables.by_part") is None
    assert probe(silent, "by_part") == (NOTHING, 0, 0)
    assert probe(silent, "by_exact") == (NOTHING, 1, 0)
    silent.set_default("Tables.by_exact", "Tables.answer_wide", (1 << 100, 9))
    assert probe(silent, "by_exact") == (9, 2, 0)
    silent.reset_default("Tables.by_exact")
    assert probe(silent, "by_exact") == (NOTHING, 1, 0)
    with pytest.raises(EntryNotFound):
        silent.set_meter("Tables.by_part", (Exact(value=1),), 0, None)
