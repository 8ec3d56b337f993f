"""All stages and bits, each worker a thread, against an optimizer that is not sharded, and at a switch."""

import re
import signal
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from kofn_host.arrays import Floats
from kofn_host.collectives import InNetwork
from kofn_host.errors import ZeroError
from kofn_host.zero import CODECS, CommunicatorCalls, SwitchMean, ZeroOptimizer, ZeroSettings
from kofn_host.zero.shards import Shards
from tests.system.collectives.crews import Processes, addresses, threads
from tests.system.collectives.scenarios import error_of, one_call
from tests.system.collectives.switched import MODEL, place
from tests.system.zero.crews import TROUBLE, all_of, beneath_a_switch, scattering

WORKERS, RATE = 3, 0.01

UNITS = [[40, 3], [17], [5]]
"""Sizes of the layers' tensors; the last layers' chunks are not all full."""

ELEMENTS = sum(map(sum, UNITS))

INITIAL = np.random.default_rng(1).normal(size=ELEMENTS).astype(np.float32)


def gradient(rank: int, step: int, parameters: Floats) -> Floats:
    """Return a gradient towards 0 with noise, of layers of very different scales."""
    noise = np.random.default_rng([rank, step]).normal(size=ELEMENTS)
    return ((parameters + 0.3 * noise) * np.geomspace(1, 0.01, ELEMENTS)).astype(np.float32)


def train(zero: ZeroOptimizer, steps: int, made: Callable[..., Floats] = gradient) -> Floats:
    """Train for some steps and return the parameters."""
    parameters = INITIAL.copy()
    for _ in range(steps):
        own = made(zero.rank, zero.steps, parameters)
        for unit, one in enumerate(zero.shards.units):
            zero.put(unit, own[one.begin : one.end])
        zero.step(RATE)
        parameters[:] = zero.gathered()
    return parameters


def units_of(settings: ZeroSettings) -> list[list[int]]:
    return [[size for unit in UNITS for size in unit]] if settings.stage == 1 else UNITS


def whole(settings: ZeroSettings, steps: int) -> npt.NDArray[np.float64]:
    """Return the parameters of textbook Adam or LAMB, not sharded, in float64."""
    parameters, m, v = INITIAL.astype(np.float64), np.zeros(ELEMENTS), np.zeros(ELEMENTS)
    (b1, b2), decay = settings.betas, settings.weight_decay
    edges = np.cumsum([size for unit in UNITS for size in unit])[:-1]
    for step in range(1, steps + 1):
        g = np.mean([gradient(rank, step - 1, parameters.astype(np.float32)) for rank in range(WORKERS)], axis=0)
        if settings.optimizer == "adam" and not settings.decoupled:
            g = g + decay * parameters
        m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g * g
        update = (m / (1 - b1**step)) / (np.sqrt(v / (1 - b2**step)) + settings.eps)
        if settings.optimizer == "lamb":
            update += decay * parameters
            tensors = zip(np.split(parameters, edges), np.split(update, edges), strict=True)
            update = np.concatenate([u * np.clip(np.linalg.norm(p) / np.linalg.norm(u), 0.01, 10) for p, u in tensors])
        if settings.decoupled:
            parameters = parameters * (1 - RATE * decay)
        parameters = parameters - RATE * update
    return parameters


@pytest.mark.slow
@pytest.mark.parametrize("stage", [1, 2, 3])
@pytest.mark.parametrize(
    "given",
    [{}, {"weight_decay": 0.1}, {"weight_decay": 0.1, "decoupled": True}, {"optimizer": "lamb", "weight_decay": 0.1}],
    ids=["adam", "decay", "adamw", "lamb"],
)
def test_32_bits_equal_the_unsharded_optimizer(stage: int, given: dict[str, Any]) -> None:
    settings = ZeroSettings(stage=stage, bits=32, **given)
    with threads("ring", WORKERS) as crew:
        found = crew.run(
            lambda one: train(ZeroOptimizer(settings, INITIAL.copy(), units_of(settings), CommunicatorCalls(one)), 20)
        )
    assert np.abs(found[0] - whole(settings, 20)).max() < 2e-6
    assert len({each.tobytes() for each in found}) == 1


def frozen(settings: ZeroSettings, steps: int, blocks: Sequence[Any]) -> npt.NDArray[np.float64]:
    """Return the parameters of 1-bit Adam or LAMB with exact votes, not sharded, in float64, with DeepSpeed's LAMB
    factor.
    """
    w, (m, v, fresh) = INITIAL.astype(np.float64), np.zeros((3, ELEMENTS))
    (b1, b2), decay, eps = settings.betas, settings.weight_decay, settings.eps
    edges = np.cumsum([size for unit in UNITS for size in unit])[:-1]
    ratios, last = np.zeros(len(edges) + 1), np.ones(len(edges) + 1)

    def norms(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        return np.array([np.linalg.norm(each) for each in np.split(values, edges)])

    for t in range(1, steps + 1):
        g = np.mean([gradient(rank, t - 1, w.astype(np.float32)) for rank in range(WORKERS)], axis=0)
        m = b1 * m + (1 - b1) * g
        if t <= settings.freeze_step:
            v = b2 * v + (1 - b2) * g * g
            prelim = m / (1 - b1**t) / (np.sqrt(v / (1 - b2**t)) + eps)
        else:
            prelim = m / (1 - b1**t) / (np.sqrt(v) + eps)
        coefficient = np.ones(len(edges) + 1)
        update = prelim + decay * w * (settings.optimizer == "lamb")
        if settings.optimizer == "lamb" and t <= settings.freeze_step:
            coefficient = np.clip(norms(w) / norms(update), 0.01, 10)
            ratios = 0.9 * ratios + 0.1 * coefficient
        elif settings.optimizer == "lamb":
            fresh = b2 * fresh + (1 - b2) * g * g
            shares = np.split((np.sqrt(v) + eps) / (np.sqrt(fresh) + eps), edges)
            factor = np.array([each.max() for each in shares])
            share = np.minimum(1, norms(prelim) / norms(update))
            last = np.clip(np.clip(factor * share + 1 - share, 0.5, 4), 0.9 * last, 1.1 * last)
            coefficient = ratios * last
        sizes = np.diff(edges, prepend=0, append=ELEMENTS)
        w = w - RATE * np.repeat(coefficient, sizes) * update
        if t == settings.freeze_step:
            v = v / (1 - b2**t)
            for block in blocks:
                v[block] = np.maximum(v[block], settings.variance_floor**2 * v[block].mean())
            fresh = v.copy()
    return w


@pytest.mark.slow
@pytest.mark.parametrize(("stage", "apart"), [(1, False), (2, False), (2, True)])
@pytest.mark.parametrize(
    "given",
    [
        {},
        pytest.param({"optimizer": "lamb"}, marks=pytest.mark.long),
        {"optimizer": "lamb", "weight_decay": 0.1},
    ],
    ids=str,
)
def test_frozen_variance_follows_the_formulas(stage: int, apart: bool, given: dict[str, Any]) -> None:
    """Votes are exact in 32-bit lanes. A floor of 0.5 is above a part of each block, or of each shard's only block."""
    settings = ZeroSettings(stage=stage, bits=1, freeze_step=8, variance_floor=0.5, **given)
    shards = Shards([*map(sum, UNITS)], WORKERS)
    columns = shards.shard_elements if apart else 0
    with beneath_a_switch(WORKERS, ELEMENTS, "int32", average=average_of(settings), columns=columns) as crew:

        def one(rank: int) -> Floats:
            calls, mean = CommunicatorCalls(crew[rank]), SwitchMean(crew[rank], ELEMENTS)
            return train(ZeroOptimizer(settings, INITIAL.copy(), units_of(settings), calls, mean), 25)

        found = all_of(WORKERS, one)
        block = crew[0].block_elements
    assert shards.shard_elements < block < ELEMENTS
    every, blocks = np.arange(ELEMENTS), list[Any](np.split(np.arange(ELEMENTS), [block]))
    if apart:
        blocks = [np.concatenate([every[there] for there, _ in shards.parts(rank)]) for rank in range(WORKERS)]
    assert np.abs(found[0] - frozen(settings, 25, blocks)).max() < 1e-5
    assert np.abs(found[0] - frozen(replace(settings, variance_floor=0.0), 25, blocks)).max() > 1e-3


class Watched(SwitchMean):
    """Keeps the given values and their mean."""

    def __init__(self, communicator: InNetwork) -> None:
        super().__init__(communicator, ELEMENTS)
        self.given, self.found = list[Floats](), list[Floats]()

    def all_reduce(self, values: Floats) -> Floats:
        self.given.append(values.copy())
        found = super().all_reduce(values)
        self.found.append(found.copy())
        return found


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["adam", pytest.param("lamb", marks=pytest.mark.long)])
@pytest.mark.parametrize(("stage", "bits"), [(1, 1), (2, 1), (3, 1), (1, 8), (3, 8)])
def test_few_bits_keep_replicas_equal_and_lose_nothing(stage: int, bits: int, optimizer: Any) -> None:
    settings = ZeroSettings(optimizer=optimizer, stage=stage, bits=bits, freeze_step=10)
    codec = {1: "onebit", 8: "int8"}[bits]
    with beneath_a_switch(WORKERS, ELEMENTS, codec, average=average_of(settings)) as crew:
        means = [Watched(each) for each in crew]

        def one(rank: int) -> tuple[Floats, Floats]:
            zero = ZeroOptimizer(
                settings, INITIAL.copy(), units_of(settings), CommunicatorCalls(crew[rank]), means[rank]
            )
            train(zero, 10)
            variance = zero._optimizer.exp_avg_sq.copy()
            return train(zero, 30), variance - zero._optimizer.exp_avg_sq

        found = all_of(WORKERS, one)
        totals = [each.agent.totals() for each in crew]
        pending = [each.agent.ledger.residual.pending.ravel()[:ELEMENTS] * 2.0**-40 for each in crew]
    assert len({parameters.tobytes() for parameters, _ in found}) == 1
    assert all(total.conserved for total in totals)
    assert np.array_equal(sum(each.aggregated for each in totals), crew[0].results)
    given = np.sum([values for mean in means for values in mean.given], axis=0, dtype=np.float64)
    counted = WORKERS * np.sum(means[0].found, axis=0, dtype=np.float64) + np.sum(pending, axis=0)
    assert np.abs(given - counted).max() < 1e-4, "each gradient must be in a mean, or be pending"
    assert all((difference == 0).all() for _, difference in found) == (bits == 1), "only 1 bit freezes the variance"


def average_of(settings: ZeroSettings) -> Any:
    return "contributors" if settings.votes_on_momentum else "gradients"


@pytest.mark.parametrize(("stage", "average"), [(1, "contributors"), (2, "gradients")])
def test_late_gradient_waits_without_the_shared_momentum(stage: int, average: Any) -> None:
    """32-bit lanes have no encoding error, so the momentum is known to the last bits. Worker 2 is
    late in some steps.
    """
    settings, late_in = ZeroSettings(stage=stage, bits=1, freeze_step=2), {3, 5, 6}
    with beneath_a_switch(WORKERS, ELEMENTS, "int32", k=WORKERS - 1, average=average) as crew:
        done = {step: threading.Barrier(WORKERS) for step in range(20)}

        class InTurn(SwitchMean):
            """Let worker 2 contribute first, or after the others."""

            def all_reduce(self, values: Floats) -> Floats:
                step, rank = zero_of[crew.index(self._communicator)].steps, self._communicator.rank
                if rank == 2 and step in late_in:
                    done[step].wait(20)
                    return super().all_reduce(values)
                if rank == 0 and step not in late_in:
                    done[step].wait(20)  # so that worker 0 is late
                    return super().all_reduce(values)
                found = super().all_reduce(values)
                done[step].wait(20)
                return found

        zero_of = dict[int, ZeroOptimizer]()

        def one(rank: int) -> tuple[Floats, Sequence[Floats]]:
            mean = InTurn(crew[rank], ELEMENTS)
            zero = zero_of[rank] = ZeroOptimizer(
                settings, INITIAL.copy(), [[ELEMENTS]], CommunicatorCalls(crew[rank]), mean
            )
            momenta = list[Floats]()
            for _ in range(8):
                train(zero, 1, lambda rank, step, _: gradient(rank, step, INITIAL))
                shard = zero._momentum.own if zero._momentum is not None else zero._optimizer.exp_avg
                momenta.append(shard.copy())
            return zero.gathered(), momenta

        found = all_of(WORKERS, one)
        assert all(each.agent.totals().conserved for each in crew)
    assert len({parameters.tobytes() for parameters, _ in found}) == 1
    shards = zero_of[0].shards
    own = np.stack([[shards.cut(expected, rank) for expected in momenta_of(late_in, stage)] for rank in range(WORKERS)])
    for rank, (_, momenta) in enumerate(found):
        assert np.abs(np.stack(momenta) - own[rank]).max() < 1e-6


def momenta_of(late_in: set[int], stage: int) -> list[Floats]:
    """Return the defined momenta: each gradient is in the sum of the first step for which its worker is in time."""
    m, waiting, found = np.zeros(ELEMENTS), {rank: np.zeros(ELEMENTS) for rank in range(WORKERS)}, []
    counts = dict.fromkeys(range(WORKERS), 0)
    for step in range(8):
        late = [] if step < 2 else [2] if step in late_in else [0]
        total, gradients = np.zeros(ELEMENTS), 0
        for rank in range(WORKERS):
            waiting[rank] = waiting[rank] + gradient(rank, step, INITIAL)
            counts[rank] += 1
            if rank not in late:
                total, gradients = total + waiting[rank], gradients + counts[rank]
                waiting[rank], counts[rank] = np.zeros(ELEMENTS), 0
        m = 0.9 * m + 0.1 * total / ((WORKERS - len(late)) if stage == 1 else gradients)
        found.append(m.astype(np.float32))
    return found


@pytest.mark.parametrize("stage", [1, 2])
def test_element_without_a_gradient_does_not_move(stage: int, caplog: pytest.LogCaptureFixture) -> None:
    """All its votes are equal; without the mask they would be steps. Its owners report it."""
    settings, dead = ZeroSettings(stage=stage, bits=1, freeze_step=5), slice(30, 41)
    shards = Shards([ELEMENTS], WORKERS)

    def without(rank: int, step: int, parameters: Floats) -> Floats:
        own = gradient(rank, step, parameters)
        own[dead] = 0
        return own

    with beneath_a_switch(WORKERS, ELEMENTS, "onebit", average=average_of(settings)) as crew:

        def one(rank: int) -> Floats:
            zero = ZeroOptimizer(
                settings, INITIAL.copy(), [[ELEMENTS]], CommunicatorCalls(crew[rank]), SwitchMean(crew[rank], ELEMENTS)
            )
            return train(zero, 15, without)

        found = all_of(WORKERS, one)
    said = [re.match(r"(\d+) of worker (\d)'s (\d+) parameters had no gradient in", each) for each in caplog.messages]
    counted = {int(each[2]): (int(each[1]), int(each[3])) for each in said if each}
    own = [shards.cut(np.arange(ELEMENTS, dtype=np.float32) + 1, rank) for rank in range(WORKERS)]
    still = [int(((each > dead.start) & (each <= dead.stop)).sum()) for each in own]
    assert counted == {rank: (some, int((own[rank] > 0).sum())) for rank, some in enumerate(still) if some}
    assert np.array_equal(found[0][dead], INITIAL[dead])
    assert (np.delete(found[0], np.r_[dead]) != np.delete(INITIAL, np.r_[dead])).all()


@pytest.mark.slow
@pytest.mark.parametrize(("stage", "bits"), [(2, 32), (3, 1), (1, 1)])
def test_packet_loss_changes_nothing(stage: int, bits: int) -> None:
    """All workers are in every sum. With a tenth of all packets lost the parameters are the same, bit by bit."""
    settings = ZeroSettings(stage=stage, bits=bits, freeze_step=2)

    def trained(lose: int) -> list[Floats]:
        given = {"average": average_of(settings), "lose": lose}
        with beneath_a_switch(WORKERS, ELEMENTS, CODECS[bits], **given) as crew:

            def one(rank: int) -> Floats:
                mean = SwitchMean(crew[rank], ELEMENTS) if bits < 32 else None
                units, calls = units_of(settings), CommunicatorCalls(crew[rank])
                return train(ZeroOptimizer(settings, INITIAL.copy(), units, calls, mean), 4)

            found = all_of(WORKERS, one)
            assert all(each.agent.totals().conserved for each in crew)
        return found

    first, *others = trained(0) + trained(10)
    assert all(np.array_equal(first, other) for other in others)


WIDE = 6 * 2048
"""Elements whose thirds are whole blocks, of votes and of octets."""


def alike(rank: int, step: int) -> Floats:
    """Return a gradient whose magnitudes are equal at all workers, so that any first contribution chooses the same
    scale.
    """
    magnitudes = np.random.default_rng(step).lognormal(size=WIDE)
    return (magnitudes * np.random.default_rng([step, rank]).choice([-1, 1], WIDE)).astype(np.float32)


@pytest.mark.slow
@pytest.mark.parametrize(("stage", "bits"), [(2, 8), (2, 1), (3, 8), (3, 1)])
def test_parameters_equal_those_of_an_all_reduce(stage: int, bits: int) -> None:
    """The shards' blocks have the same elements and k = n. The frozen variance has the same floors, too."""
    settings = ZeroSettings(stage=stage, bits=bits, freeze_step=3, variance_floor=0.5)

    def trained(columns: int) -> list[bytes]:
        with beneath_a_switch(WORKERS, WIDE, CODECS[bits], columns=columns) as crew:

            def one(rank: int) -> bytes:
                mean, calls = SwitchMean(crew[rank], WIDE), CommunicatorCalls(crew[rank])
                zero = ZeroOptimizer(settings, np.zeros(WIDE, np.float32), [[WIDE]], calls, mean)
                for step in range(8):
                    zero.put(0, alike(rank, step))
                    zero.step(RATE)
                    parameters = zero.gathered().tobytes()
                return parameters

            found = all_of(WORKERS, one)
            assert all(each.agent.totals().conserved for each in crew)
        return found

    apart, together = trained(WIDE // WORKERS), trained(0)
    assert len({*apart, *together}) == 1
    assert any(np.frombuffer(apart[0], np.float32))


@pytest.mark.slow
@pytest.mark.parametrize("stage", [2, 3])
@pytest.mark.parametrize("bits", [8, 1])
def test_scattered_shards_keep_replicas_equal(stage: int, bits: int) -> None:
    """The layers' last chunks are not full, k = 2 of 3, and packets are lost, repeated and overtaken."""
    settings = ZeroSettings(stage=stage, bits=bits, freeze_step=3, mask=False)
    given: dict[str, Any] = {"columns": Shards([*map(sum, UNITS)], WORKERS).shard_elements, "trouble": TROUBLE}
    with beneath_a_switch(WORKERS, ELEMENTS, CODECS[bits], k=WORKERS - 1, lose=10, **given) as crew:

        def one(rank: int) -> Floats:
            mean = SwitchMean(crew[rank], ELEMENTS)
            zero = ZeroOptimizer(settings, INITIAL.copy(), UNITS, CommunicatorCalls(crew[rank]), mean)
            found = train(zero, 8)
            assert np.array_equal(zero.shard, zero.shards.cut(found, rank)), "missing elements must be 0"
            return found

        found = all_of(WORKERS, one)
        totals, results = [each.agent.totals() for each in crew], [each.results for each in crew]
    assert len({parameters.tobytes() for parameters in found}) == 1
    assert all(total.conserved for total in totals)
    assert np.array_equal(sum(results), sum(each.aggregated for each in totals))
    assert np.abs(found[0]).mean() < np.abs(INITIAL).mean()


def trains_until_failure(communicator: Any, stage: int, bits: int) -> str:
    """Train until another worker dies and return the error."""
    settings, mean = ZeroSettings(stage=stage, bits=bits, freeze_step=1), None
    if bits < 32:
        mean = SwitchMean(communicator, ELEMENTS)
    zero = ZeroOptimizer(settings, INITIAL.copy(), UNITS, CommunicatorCalls(communicator), mean)
    return error_of(lambda: train(zero, 1_000_000))


@pytest.mark.parametrize("stage", [2, 3])
@pytest.mark.parametrize("bits", [32, 8, 1])
@pytest.mark.slow
def test_owner_killed_in_mid_step_is_named_at_all_workers(stage: int, bits: int) -> None:
    """The error comes long before any time-out: the owner's shard is gone."""
    columns = Shards([*map(sum, UNITS)], WORKERS).shard_elements
    with place(MODEL, WORKERS, addresses(WORKERS)) as found:
        join = partial(scattering, found, CODECS[bits], columns)
        with closing(Processes(join, WORKERS, 20.0)) as crew:
            crew.run(one_call)
            crew.begin(trains_until_failure, stage, bits)
            time.sleep(0.5)  # until each worker is in some step
            begin = time.monotonic()
            crew.signal(1, signal.SIGKILL)
            errors = crew.end([0, 2])
            assert time.monotonic() - begin < 5
    assert all(error.startswith("worker 1 is gone: ") for error in errors), errors


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"stage": 4}, "stage must be 1, 2 or 3, got 4"),
        ({"bits": 2}, "bits must be 1, 8 or 32, got 2"),
        ({"freeze_step": 0}, "freeze_step must be 1 or more with bits = 1, which freezes the variance, got 0"),
        ({"optimizer": "sgd"}, "optimizer must be 'adam' or 'lamb', got 'sgd'"),
        ({"stage": 1.0}, "stage must be 1, 2 or 3, got 1.0"),
        ({"bits": True}, "bits must be 1, 8 or 32, got True"),
        ({"freeze_step": 2.5}, "freeze_step must be a whole number, 0 or more, got 2.5"),
        ({"freeze_step": -1, "bits": 32}, "freeze_step must be a whole number, 0 or more, got -1"),
        ({"betas": (0.9, 1.0)}, r"betas must be two numbers, 0 to below 1, got \(0.9, 1.0\)"),
        ({"betas": (0.9,)}, r"betas must be two numbers, 0 to below 1, got \(0.9,\)"),
        ({"betas": 0.9}, "betas must be two numbers, 0 to below 1, got 0.9"),
        ({"betas": "09"}, "betas must be two numbers, 0 to below 1, got '09'"),
        ({"betas": (0.9, float("nan"))}, r"betas must be two numbers, 0 to below 1, got \(0.9, nan\)"),
        ({"eps": -1.0}, "eps must be a finite number, 0 or more, got -1.0"),
        ({"eps": "a"}, "eps must be a finite number, 0 or more, got 'a'"),
        ({"weight_decay": float("inf")}, "weight_decay must be a finite number, 0 or more, got inf"),
        ({"variance_floor": None}, "variance_floor must be a finite number, 0 or more, got None"),
        ({"decoupled": 3}, "decoupled must be True or False, got 3"),
        ({"mask": "no"}, "mask must be True or False, got 'no'"),
        ({"residual": ["exact"]}, r"residual must be one of 'exact', 'bfloat16', 'int8', got \['exact'\]"),
    ],
)
def test_invalid_settings_are_refused(given: dict[str, Any], words: str) -> None:
    with pytest.raises(ZeroError, match=words):
        ZeroSettings(**given)


def test_unit_has_one_gradient_a_step() -> None:
    settings = ZeroSettings(stage=2, bits=32)
    with threads("ring", 1) as crew:
        (one,) = crew.communicators
        zero = ZeroOptimizer(settings, INITIAL.copy(), UNITS, CommunicatorCalls(one))
        with pytest.raises(ZeroError, match=r"must have shape \(17,\), got \(2,\)"):
            zero.put(1, np.zeros(2, np.float32))
        zero.put(1, np.zeros(17, np.float32))
        with pytest.raises(ZeroError, match="a unit must get one gradient a step, got a second one for unit 1"):
            zero.put(1, np.zeros(17, np.float32))
        with pytest.raises(ZeroError, match=r"units \[0, 2\] have no gradient in step 1"):
            zero.step(RATE)
        with pytest.raises(
            ZeroError, match="a CompressedMean must be given with bits 1 and 8, and only then, got bits = 1"
        ):
            ZeroOptimizer(ZeroSettings(), INITIAL, [[ELEMENTS]], CommunicatorCalls(one))
