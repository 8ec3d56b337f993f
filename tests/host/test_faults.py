"""Injected faults: as often as asked for, the same again for the same seed, and only whom they are meant for."""

import pytest

from host.faults import Copy, Faults
from run.config import Fault


def faults(*rules: Fault, rank: int = 0, direction: str = "send", seed: int = 1) -> Faults:
    return Faults(rules, rank=rank, direction=direction, seed=seed)


def fates(decider: Faults, count: int = 4000) -> list[list[Copy]]:
    return [list(decider.fate(b"x", 0.0)) for _ in range(count)]


def test_rates_are_those_asked_for() -> None:
    numbers = [len(copies) for copies in fates(faults(Fault(drop=0.1, duplicate=0.2)))]
    assert numbers.count(0) / len(numbers) == pytest.approx(0.1, abs=0.02)
    assert numbers.count(2) / len(numbers) == pytest.approx(0.18, abs=0.03)


def test_the_same_seed_decides_the_same() -> None:
    rule = Fault(drop=0.3, jitter_ms=5.0)
    assert fates(faults(rule)) == fates(faults(rule))
    for other in (faults(rule, seed=2), faults(rule, rank=1), faults(rule, direction="receive")):
        assert fates(other) != fates(faults(rule))


def test_delay_and_jitter_add_up() -> None:
    delays = [copy.delay_s for copies in fates(faults(Fault(delay_ms=2.0, jitter_ms=3.0))) for copy in copies]
    assert 0.002 <= min(delays) < 0.0022
    assert 0.0048 < max(delays) <= 0.005
    assert faults(Fault(delay_ms=2.0), Fault(delay_ms=3.0)).fate(b"x", 0.0) == [Copy(0.005, b"x")]


def test_only_the_workers_direction_and_time_that_are_named() -> None:
    rule = Fault(workers=(1,), direction="receive", drop=1.0, from_s=1.0, until_s=2.0)
    assert not faults(rule)
    assert not faults(rule, rank=1)
    partition = faults(rule, rank=1, direction="receive")
    assert partition
    assert [len(partition.fate(b"x", elapsed_s)) for elapsed_s in (0.5, 1.0, 1.9, 2.0)] == [1, 0, 0, 1]
