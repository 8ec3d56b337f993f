"""Meters and the idle timeouts of entries."""

from ctypes import c_uint64

import pytest

from kofn_switch.engine.engine import Engine
from kofn_switch.errors import InvalidEntry
from kofn_switch.state.entries import Entry, MeterConfig, Ternary
from kofn_switch.state.idle import IdleTimeouts
from tests.switch.every_table import MISS, exact, probe

# Meters

STILL = MeterConfig(committed_rate=0, committed_burst=2, peak_rate=0, peak_burst=4)


@pytest.mark.slow
def test_direct_meters_colour_hits(engine: Engine) -> None:
    for a in (1, 2):
        engine.insert(Entry(table="Tables.metered", key=exact(a), action="Tables.metered_answer", parameters=(a,)))
    engine.set_meter("Tables.metered", exact(1), 0, STILL)
    assert engine.meter("Tables.metered", exact(1)) == STILL
    assert engine.meter("Tables.metered", exact(2)) is None
    assert [probe(engine, "metered", a=1)[2] for _ in range(6)] == [0, 0, 1, 1, 2, 2]
    assert probe(engine, "metered", a=2) == (2, 0, 0)
    assert probe(engine, "metered", a=3) == (MISS, 0, 0)
    engine.set_meter("Tables.metered", exact(1), 0, STILL)
    assert probe(engine, "metered", a=1)[2] == 0, "the bursts must be full again"
    engine.set_meter("Tables.metered", exact(1), 0, None)
    assert [probe(engine, "metered", a=1)[2] for _ in range(6)] == [0] * 6
    engine.set_meter("Tables.metered", exact(1), 0, STILL)
    engine.delete("Tables.metered", exact(1))
    engine.insert(Entry(table="Tables.metered", key=exact(9), action="Tables.metered_answer", parameters=(9,)))
    assert engine.meter("Tables.metered", exact(9)) is None, "a new entry must start without a rate"
    assert [probe(engine, "metered", a=9)[2] for _ in range(6)] == [0] * 6


def test_meters_of_bytes_count_packet_sizes(engine: Engine) -> None:
    size = 27  # of the packet
    engine.write_meter(
        "Tables.cell_meter",
        3,
        MeterConfig(committed_rate=0, committed_burst=2 * size - 1, peak_rate=0, peak_burst=3 * size),
    )
    assert [probe(engine, "cell_meter", a=3)[2] for _ in range(5)] == [0, 1, 1, 2, 2]
    assert probe(engine, "cell_meter", a=4)[2] == 0
    assert probe(engine, "cell_meter", a=200)[2] == 0, "an index beyond the end must leave the target as it is"


def test_tokens_are_replenished(engine: Engine) -> None:
    fast = 10**12  # bytes a second: the tokens replenish completely between two packets
    engine.write_meter(
        "Tables.cell_meter", 3, MeterConfig(committed_rate=fast, committed_burst=30, peak_rate=fast, peak_burst=30)
    )
    colours = [probe(engine, "cell_meter", a=3)[2] for _ in range(200)]
    assert colours.count(0) > 1, "the burst is one packet, so tokens were replenished"


@pytest.mark.slow
def test_largest_rate_lasts(engine: Engine) -> None:
    most = (1 << 63) - 1
    config = MeterConfig(committed_rate=most, committed_burst=27, peak_rate=most, peak_burst=27)
    engine.write_meter("Tables.cell_meter", 3, config)
    for _ in range(3):
        engine.take_idle(0.15)  # more tokens are given meanwhile than a counter holds
        assert [probe(engine, "cell_meter", a=3)[2] for _ in range(4)].count(0) > 2


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (MeterConfig(committed_rate=2, committed_burst=1, peak_rate=1, peak_burst=1), "2, is above the peak rate, 1"),
        (MeterConfig(committed_rate=-1, committed_burst=1, peak_rate=1, peak_burst=1), "rates and bursts of meter"),
    ],
)
def test_invalid_configurations_are_refused(engine: Engine, config: MeterConfig, message: str) -> None:
    with pytest.raises(InvalidEntry, match=message):
        engine.write_meter("Tables.cell_meter", 0, config)
    assert engine.read_meter("Tables.cell_meter", 0) is None


def test_missing_meters_are_refused(engine: Engine) -> None:
    with pytest.raises(InvalidEntry, match=r"meter Tables.cell_meter has cells 0..15, not 16"):
        engine.read_meter("Tables.cell_meter", 16)
    with pytest.raises(InvalidEntry, match=r"no meter Tables.entry_meter; it has Tables.cell_meter"):
        engine.write_meter("Tables.entry_meter", 0, None)
    engine.insert(Entry(table="Tables.by_part", key=exact(0), action="Tables.miss"))
    with pytest.raises(InvalidEntry, match=r"Tables.by_part has no direct meter; tables that have one: Tables.metered"):
        engine.meter("Tables.by_part", exact(0))


# Idle timeouts


def aged(value: int, timeout_ns: int) -> Entry:
    return Entry(
        table="Tables.aged",
        key=(Ternary(value=value, mask=0xFF),),
        priority=1,
        action="Tables.miss",
        idle_timeout_ns=timeout_ns,
    )


def test_idle_entries_are_reported_repeatedly(engine: Engine) -> None:
    short, long, never = aged(1, 1_000_000), aged(2, 3_600_000_000_000), aged(3, 0)
    for one in (short, long, never):
        engine.insert(one)
    assert engine.take_idle(20) == [short]
    assert engine.take_idle(20) == [short]
    engine.delete("Tables.aged", short.key, 1)
    assert engine.take_idle(0) == []


def test_hit_restarts_the_idle_time(engine: Engine) -> None:
    one = aged(1, 0)
    engine.insert(one)
    engine.take_idle(0.05)  # time passes
    probe(engine, "aged", a=2)
    before = engine.time_since_hit("Tables.aged", one.key, 1)
    assert before >= 50_000_000, "a miss must not count as a hit"

    def hit() -> int:
        probe(engine, "aged", a=1)
        return engine.time_since_hit("Tables.aged", one.key, 1)

    assert any(hit() < before for _ in range(100))


def test_idle_timeouts_follow_the_clock() -> None:
    now = [1000]
    idle, hits = IdleTimeouts(lambda: now[0]), [c_uint64(), c_uint64()]
    idle.watch(aged(1, 100_000), 0, hits[0])
    idle.watch(aged(2, 250_000), 1, hits[1])
    assert idle.wait_s() == 100 / 1e6
    now[0] = 1099
    assert idle.take() == []
    hits[0].value = 1050
    now[0] = 1149
    assert idle.take() == []
    assert idle.elapsed_ns("Tables.aged", 0) == 99_000
    now[0] = 1150
    assert idle.take() == [aged(1, 100_000)]
    now[0] = 1249
    assert idle.take() == [], "a report must restart the idle time"
    assert idle.elapsed_ns("Tables.aged", 0) == 199_000, "a report must not count as a hit"
    now[0] = 1250
    assert idle.take() == [aged(2, 250_000), aged(1, 100_000)]
    idle.watch(aged(1, 0), 0, hits[0])
    idle.forget("Tables.aged", 1)
    now[0] = 10_000
    assert idle.take() == []
    assert idle.wait_s() is None


def test_many_changes_of_an_entry_leave_one_deadline() -> None:
    now = [0]
    idle, hit = IdleTimeouts(lambda: now[0]), c_uint64()
    for step in range(1000):
        now[0] = step
        idle.watch(aged(1, 5_000_000), 0, hit)
    assert idle.wait_s() is not None
    now[0] = 5998
    assert idle.take() == []
    now[0] = 5999
    assert idle.take() == [aged(1, 5_000_000)]


def test_timeouts_of_tables_without_them_are_refused(engine: Engine) -> None:
    with pytest.raises(InvalidEntry, match="idle_timeout_ns must be set to 0"):
        engine.insert(Entry(table="Tables.by_part", key=exact(0), action="Tables.miss", idle_timeout_ns=1))
    with pytest.raises(InvalidEntry, match=r"0 .none. or more, not -1 ns"):
        engine.insert(aged(1, -1))
    with pytest.raises(InvalidEntry, match=r"Tables.by_part has no idle timeouts"):
        engine.time_since_hit("Tables.by_part", exact(0))
