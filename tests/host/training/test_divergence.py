"""Divergence of a training is detected, and a training that learns is left alone."""

import numpy as np
import pytest

from kofn_host.training.divergence import GROWTH, Divergence
from kofn_host.workload.model import Perceptron, load_shards
from kofn_host.workload.optimizer import Momentum


def trained(rate: float, iterations: int) -> tuple[Divergence, float, int]:
    """Train on four workers' mean gradients; return the detector, the final accuracy, and the iteration of divergence
    (0: none).
    """
    model = Perceptron((64,), 1)
    divergence, shards = Divergence(model.parameters), load_shards(range(4), 4, 1)
    optimizer = Momentum(model.parameters, rate=rate, momentum=0.9)
    for iteration in range(1, iterations + 1):
        gradients = [model.gradient(shard.batch(iteration, 32))[1] for shard in shards]
        optimizer.step(np.clip(np.mean(gradients, axis=0), -64, 64))
        if divergence.seen():
            return divergence, model.accuracy(shards[0].held_out), iteration
    return divergence, model.accuracy(shards[0].held_out), 0


@pytest.mark.parametrize("rate", [0.01, 0.1, 1.0])
def test_learning_training_is_left_alone(rate: float) -> None:
    _, accuracy, diverged = trained(rate, 120)
    assert accuracy > 0.88
    assert not diverged


@pytest.mark.parametrize(("rate", "soon"), [(10.0, 5), (1000.0, 2), (1e30, 2)])
def test_divergence_is_detected_within_a_few_iterations(rate: float, soon: int) -> None:
    with np.errstate(all="ignore"):
        _, accuracy, diverged = trained(rate, 30)
    assert 1 <= diverged <= soon
    assert accuracy < 0.2


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e30])
@pytest.mark.parametrize("first", [0.0, 0.1])
def test_huge_or_non_finite_parameters_are_detected(first: float, value: float) -> None:
    parameters = np.full(10, first, np.float32)
    divergence = Divergence(parameters)
    assert not divergence.seen()
    parameters[:] = 0.9 * GROWTH * (first or 1.0)
    assert not divergence.seen()
    parameters[3] = value
    assert divergence.seen()


def test_replicas_agree_wherever_their_arrays_lie() -> None:
    values = np.random.default_rng(1).normal(size=20_000).astype(np.float32)
    places = [np.empty(20_001, np.float32)[offset:][:20_000] for offset in (0, 1)]
    watching = []
    for place in places:
        place[:] = values
        watching.append(Divergence(place))
    assert watching[0]._limit == watching[1]._limit
