"""Every key at its extremes is refused with what must hold, or a run and a simulation can be built from it."""

import math
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from msgspec import inspect
from msgspec.structs import replace

from kofn.sim.clock import VirtualClock
from kofn.sim.costs import _decisions_s
from kofn.sim.scale.simulation import simulate_scale
from kofn.sim.simulation import Simulation
from kofn.sim.worker_model import TimingModel
from kofn_common.config.dump import to_toml
from kofn_common.config.errors import ConfigError
from kofn_common.config.schema import Config
from kofn_controller.job.journal import Journal
from kofn_host.training import JobCoding
from kofn_host.workload import load_stragglers
from tests.sim.lab import COSTS

BASE: dict[str, Any] = {
    "job": {"workers": 3},
    "model": {"hidden": [8]},
    "run": {"max_iterations": 3, "trials": ["fixed:2"]},
    "straggler": [{"workers": [0], "mean_ms": 1.0}, {"workers": [1], "mean_ms": 1.0, "law": "pareto"}],
    "shock": [{"workers": [2], "blocking_ms": 1.0, "for_ms": 10.0, "share": 0.1}],
    "link": [{"workers": [2], "mbps": 10.0, "at_iteration": 2}],
    "fault": [{"drop": 0.1}],
}
BEYOND = (-1, 0, 2**63, 10**30, 4294967296.0, 1e-300, 1e308, math.inf, math.nan)
SLOW_S = 3.0


def numbers(kind: inspect.Type) -> Iterator[inspect.IntType | inspect.FloatType]:
    for each in kind.types if isinstance(kind, inspect.UnionType) else (kind,):
        if isinstance(each, inspect.IntType | inspect.FloatType):
            yield each


def extremes(kind: inspect.IntType | inspect.FloatType) -> Iterator[float]:
    """Yield the limits of a type, and values beyond any sensible limit."""
    yield from (limit for limit in (kind.ge, kind.le) if limit is not None)
    yield from (math.nextafter(limit, math.inf) for limit in (kind.gt,) if limit is not None)
    yield from (math.nextafter(limit, -math.inf) for limit in (kind.lt,) if limit is not None)
    yield from (int(value) if isinstance(kind, inspect.IntType) else value for value in BEYOND if fits(kind, value))


def fits(kind: inspect.Type, value: float) -> bool:
    return isinstance(kind, inspect.FloatType) or (math.isfinite(value) and value == int(value))


def keys() -> Iterator[tuple[str, str]]:
    """Yield table and key of every number of the configuration."""
    for table in inspect.type_info(Config).fields:  # type: ignore[attr-defined]
        kind = table.type
        for section in kind.types if isinstance(kind, inspect.UnionType) else (kind,):
            entry = section.item_type if isinstance(section, inspect.VarTupleType) else section
            if isinstance(entry, inspect.StructType):
                yield from ((table.name, field.name) for field in entry.fields if any(numbers(field.type)))


def values(table: str, key: str) -> set[float]:
    kind = next(each.type for each in inspect.type_info(Config).fields if each.name == table)  # type: ignore[attr-defined]
    section = kind.item_type if isinstance(kind, inspect.VarTupleType) else kind
    (found,) = [field.type for field in section.fields if field.name == key]
    return {value for number in numbers(found) for value in extremes(number)}


def documents(table: str, key: str, value: float) -> Iterator[dict[str, Any]]:
    """Yield the base with the value in each of its entries of the table."""
    entries = BASE.get(table, {})
    if isinstance(entries, dict):
        yield BASE | {table: entries | {key: value}}
        return
    for number, entry in enumerate(entries):
        yield BASE | {table: [*entries[:number], entry | {key: value}, *entries[number + 1 :]]}


def build(config: Config, *, decides: bool) -> None:
    """Build what a run, a simulation and a simulation of scale build; with `decides`, choose k from some iterations."""
    assert Config.parse(to_toml(config)) == config
    JobCoding.of(config.job, config.compress, 5000)
    ranks = range(config.job.workers)
    for rank in ranks:
        source = load_stragglers(config, rank)
        drawn = [source.blocking_s(iteration, 0, float(iteration)) for iteration in range(1, 4)]
        assert np.isfinite(drawn).all() and math.isfinite(source.compute_s(1)) and math.isfinite(source.mean_s(1))
    clock = VirtualClock()
    models: list[Any] = [TimingModel(config) for _ in ranks]
    Simulation(config=config, models=models, costs=COSTS, clock=clock, journal=Journal(None, clock.time))
    if decides:
        assert np.isfinite(_decisions_s(config)).all()
    short = replace(config, run=replace(config.run, max_iterations=2, seeds=1))
    (found,) = simulate_scale(short, "fixed:1", lambda iteration, virtual_s: None)
    assert math.isfinite(found.mean_iteration_s)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(("table", "key"), list(keys()))
@pytest.mark.slow
def test_key_at_its_extremes_is_refused_or_works(table: str, key: str) -> None:
    for value in sorted(values(table, key), key=str):
        for document in documents(table, key, value):
            begin_s = time.thread_time()
            try:
                config = Config.of(document)
            except ConfigError as error:
                assert " must " in str(error), error
                continue
            try:
                build(config, decides=table in ("policy", "straggler"))
            except Exception as error:
                raise AssertionError(f"{table}.{key} = {value!r}: {error!r}") from error
            assert time.thread_time() - begin_s < SLOW_S, f"{table}.{key} = {value!r}"


def test_base_works() -> None:
    build(Config.of(BASE), decides=True)
