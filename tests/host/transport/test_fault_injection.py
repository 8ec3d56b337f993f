"""Injected faults have the configured rates, repeat for the same seed, and concern the configured workers alone."""

import asyncio
import heapq
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kofn_common.config.errors import ConfigError
from kofn_common.config.faults import FaultSection
from kofn_common.config.schema import Config
from kofn_common.wire.packet import WORD_BYTES, KofnHeader, decode_header, encode
from kofn_host.transport.fault_injection import Copy, Faults
from kofn_host.transport.send_queue import HELD_S, SendQueue


def faults(*rules: FaultSection, rank: int = 0, direction: str = "send", seed: int = 1) -> Faults:
    return Faults(rules, rank=rank, direction=direction, seed=seed)


def fates(injector: Faults, count: int = 4000) -> list[list[Copy]]:
    return [list(injector.fate(b"x", 0.0)) for _ in range(count)]


def test_rates_are_the_configured_ones() -> None:
    numbers = [len(copies) for copies in fates(faults(FaultSection(drop=0.1, duplicate=0.2)))]
    assert numbers.count(0) / len(numbers) == pytest.approx(0.1, abs=0.02)
    assert numbers.count(2) / len(numbers) == pytest.approx(0.18, abs=0.03)


@pytest.mark.slow
def test_same_seed_decides_the_same() -> None:
    rule = FaultSection(drop=0.3, jitter_ms=5.0)
    assert fates(faults(rule)) == fates(faults(rule))
    for other in (faults(rule, seed=2), faults(rule, rank=1), faults(rule, direction="receive")):
        assert fates(other) != fates(faults(rule))


def test_delay_and_jitter_add_up() -> None:
    delays = [copy.delay_s for copies in fates(faults(FaultSection(delay_ms=2.0, jitter_ms=3.0))) for copy in copies]
    assert 0.002 <= min(delays) < 0.0022
    assert 0.0048 < max(delays) <= 0.005
    assert faults(FaultSection(delay_ms=2.0), FaultSection(delay_ms=3.0)).fate(b"x", 0.0) == [Copy(0.005, b"x")]


def test_only_the_configured_workers_direction_and_time_are_affected() -> None:
    rule = FaultSection(workers=(1,), direction="receive", drop=1.0, from_s=1.0, until_s=2.0)
    assert not faults(rule)
    assert not faults(rule, rank=1)
    partition = faults(rule, rank=1, direction="receive")
    assert partition
    assert [len(partition.fate(b"x", elapsed_s)) for elapsed_s in (0.5, 1.0, 1.9, 2.0)] == [1, 0, 0, 1]


def test_rules_for_the_switch_do_not_apply_to_the_host() -> None:
    assert not faults(FaultSection(where="switch", drop=1.0))


def test_exchanged_iteration_passes_the_checksum() -> None:
    injector = faults(FaultSection(exchange=0.5))
    header = KofnHeader(job=1, iteration=3, words=1)
    arrived = [injector.fate(encode(header, bytes(256)), 0.0)[0].datagram for _ in range(100)]
    assert {decode_header(datagram).iteration for datagram in arrived} == {3, 3 << 16}


def test_corruption_flips_one_bit_anywhere_at_the_configured_rate() -> None:
    sent = bytes(64)
    injector = faults(FaultSection(corrupt=0.2))
    got = [injector.fate(sent, 0.0)[0].datagram for _ in range(4000)]
    flips = [int.from_bytes(datagram, "big") for datagram in got if datagram != sent]
    assert len(flips) / len(got) == pytest.approx(0.2, abs=0.02)
    assert {flip.bit_count() for flip in flips} == {1}
    assert len({flip.bit_length() for flip in flips}) > 400  # of 512 places


def test_script_applies_to_its_datagrams() -> None:
    injector = faults(FaultSection(packets=(3, 4), drop=1.0), FaultSection(packets=(4, 6), duplicate=1.0))
    assert [len(injector.fate(b"x", 0.0)) for _ in range(7)] == [1, 1, 0, 0, 1, 2, 1]


def test_fault_of_some_blocks_applies_to_their_packets_alone() -> None:
    injector = faults(FaultSection(blocks=(2, 5), drop=1.0))
    packets = [encode(KofnHeader(job=1, block=block, words=1), bytes(WORD_BYTES)) for block in range(7)]
    assert [len(injector.fate(packet, 0.0)) for packet in packets] == [1, 1, 0, 1, 1, 0, 1]
    assert len(injector.fate(b"no packet", 0.0)) == 1
    with pytest.raises(ConfigError, match=r"fault\.where must be 'host' with fault\.blocks, got 'switch'"):
        Config.of({"fault": [{"where": "switch", "blocks": [1], "drop": 1.0}]})


class VirtualTime:
    """A clock that stands still until it is moved."""

    def __init__(self) -> None:
        self.now = 0.0
        self._timers: list[tuple[float, int, asyncio.Handle]] = []
        self._loop = asyncio.new_event_loop()
        self._loop.close()

    def time(self) -> float:
        return self.now

    def call_at(self, when: float, callback: Callable[..., object], *args: Any) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self._loop)
        heapq.heappush(self._timers, (when, len(self._timers), handle))
        return handle

    def move(self, to: float) -> None:
        while self._timers and self._timers[0][0] <= to:
            self.now, _, handle = heapq.heappop(self._timers)
            if not handle.cancelled():
                handle._run()
        self.now = to


def carried(*rules: FaultSection, steps: int, step_s: float = 0.001) -> list[tuple[int, int]]:
    """Send datagram i at step i and return the arrivals as (millisecond, datagram)."""
    clock, arrived = VirtualTime(), list[tuple[int, int]]()
    line = SendQueue(
        faults(*rules), clock, lambda come: arrived.extend((round(clock.now * 1000), one[0]) for one in come)
    )
    for number in range(steps):
        clock.move(number * step_s)
        line.carry([bytes([number])])
    clock.move(10.0)
    return arrived


def test_delayed_datagram_arrives_later() -> None:
    assert carried(FaultSection(delay_ms=5.0), steps=3) == [(5, 0), (6, 1), (7, 2)]


def test_reordered_datagram_arrives_after_the_next_one() -> None:
    assert carried(FaultSection(packets=(2,), reorder=1.0), steps=4) == [(0, 0), (2, 2), (2, 1), (3, 3)]
    assert carried(FaultSection(reorder=1.0), steps=4) == [(1, 1), (1, 0), (3, 3), (3, 2)]
    late = carried(FaultSection(packets=(2,), reorder=1.0), FaultSection(delay_ms=5.0), steps=4)
    assert late == [(5, 0), (7, 2), (7, 1), (8, 3)]


def test_reordered_datagram_does_not_wait_for_ever() -> None:
    assert carried(FaultSection(packets=(2,), reorder=1.0), FaultSection(packets=(3,), drop=1.0), steps=3) == [
        (0, 0),
        (round(1 + HELD_S * 1000), 1),
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "",
            r"fault must have one or more of drop, duplicate, corrupt, exchange, reorder, delay_ms, jitter_ms above 0",
        ),
        ("packets = [1]", "fault must have one or more of"),
        ("drop = 1\npackets = []", "fault.packets must have one or more numbers, got none"),
        ("drop = 1\npackets = [0]", r"fault\[0\].packets\[0\] must be 1 to 1e\+09, got 0"),
        ("drop = 1\nworkers = []", "fault.workers must have one or more numbers, got none"),
        ("corrupt = 2", r"fault\[0\].corrupt must be 0 to 1, got 2"),
        ("drop = 1\nwhere = 'router'", r"fault\[0\].where must be 'host' or 'switch' or 'uplink', got 'router'"),
        ("drop = 1\nfrom_s = 2\nuntil_s = 2", "fault.until_s must be more than fault.from_s = 2.0, got 2.0"),
        (
            "drop = 1\nwhere = 'switch'\n[network]\ntarget = 'bmv2'",
            "fault.where must be 'host' with network.target = 'bmv2', got 'switch': BMv2's ports have no fault layer",
        ),
    ],
)
def test_impossible_fault_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "c.toml"
    path.write_text(f"[[fault]]\n{text}")
    with pytest.raises(ConfigError, match=message):
        Config.load(path)
