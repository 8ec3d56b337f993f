"""Keys that the control plane may put into value sets; the suite's value_sets.stf tests their effect on packets."""

import json
from pathlib import Path

import pytest

from kofn_switch.engine.engine import Engine
from kofn_switch.errors import InvalidEntry, TableFull, UnknownObject

PROGRAM = Path(__file__).parent / "suite" / "programs" / "value_sets.json"
ONE, TWO = "TestParser.one_field", "TestParser.two_fields"


@pytest.fixture
def engine() -> Engine:
    switch = Engine({})
    switch.load(PROGRAM.read_bytes())
    return switch


def path(engine: Engine, twelve: int) -> int:
    ((_, packet),) = engine.inject(0, bytes([1]) + twelve.to_bytes(2, "big") + bytes(1))
    return packet[3]


def test_written_keys_are_read_back(engine: Engine) -> None:
    assert engine.value_set(ONE) == ()
    engine.set_value_set(ONE, [7, 3, 7])
    assert engine.value_set(ONE) == (7, 3)
    assert engine.value_set(TWO) == ()


def test_set_of_unknown_size_takes_many_keys() -> None:
    """Compilers before value_set(size) wrote no size."""
    root = json.loads(PROGRAM.read_text())
    for item in root["parse_vsets"]:
        del item["max_size"]
    switch = Engine({})
    switch.load(json.dumps(root).encode())
    switch.set_value_set(ONE, range(1000))
    assert len(switch.value_set(ONE)) == 1000


@pytest.mark.parametrize(
    ("name", "keys", "error", "message"),
    [
        ("unknown", [1], UnknownObject, rf"no value set unknown; it has {ONE}, {TWO}"),
        (ONE, [1, 2, 3, 4, 5], TableFull, rf"{ONE} holds 4 keys, not 5"),
        (ONE, [1, 1 << 12], InvalidEntry, r"bit<12>.*0x1000 does not fit"),
        (ONE, [-1], InvalidEntry, r"bit<12>"),
    ],
)
def test_keys_that_do_not_fit_change_nothing(
    engine: Engine, name: str, keys: list[int], error: type[Exception], message: str
) -> None:
    engine.set_value_set(ONE, [9])
    with pytest.raises(error, match=message):
        engine.set_value_set(name, keys)
    assert engine.value_set(ONE) == (9,)
    assert [path(engine, twelve) for twelve in (9, 1)] == [5, 1]
