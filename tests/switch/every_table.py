"""The program with every kind of table, suite/programs/tables.p4: a switch that runs it, and its
packets and entries.
"""

from pathlib import Path

from kofn_switch.engine.engine import Engine
from kofn_switch.state.entries import Entry, Exact, Key, Via

PROGRAM = Path(__file__).parent / "suite" / "programs" / "tables.json"
MISS, NOTHING = 0xEE, 0
NUMBERS = {"by_lpm": 2, "by_ternary": 4, "by_range": 5, "indirect": 11, "indirect_too": 12, "selected": 13}
NUMBERS |= {"by_exact": 1, "by_part": 9}
NUMBERS |= {"metered": 14, "cell_meter": 15, "aged": 16}


def probe(engine: Engine, table: str, a: int = 0, b: int = 0, c: int = 0, wide: int = 0) -> tuple[int, int, int]:
    """Send a packet and return its result, after and colour."""
    fields = (NUMBERS[table], 1), (a, 1), (b, 2), (c, 4), (wide, 16), (0, 3)
    ((_, packet),) = engine.inject(0, b"".join(value.to_bytes(size, "big") for value, size in fields))
    return packet[24], packet[25], packet[26]


def exact(value: int) -> Key:
    return (Exact(value=value),)


def entry(table: str, a: int, via: Via | None = None) -> Entry:
    return Entry(table=f"Tables.{table}", key=exact(a), via=via)
