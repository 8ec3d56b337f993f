"""Networks in NumPy have correct gradients, and the same bits in any order of layers."""

from collections.abc import Callable

import numpy as np
import pytest

from kofn_common.config.schedule import FAMILIES, WITH_FRONT
from kofn_host.schedule.families import PassSchedule
from kofn_host.workload.model import Convolutional, Perceptron, load_shard
from kofn_host.workload.neural_network import NeuralNetwork

NETWORKS: dict[str, Callable[[], NeuralNetwork]] = {
    "perceptron": lambda: Perceptron((12, 9), 1),
    "convolutional": lambda: Convolutional((3, 4), 1),
}

BATCH = load_shard(0, 4, 1).batch(1, 16)


@pytest.mark.parametrize("name", NETWORKS)
def test_gradients_equal_finite_differences(name: str) -> None:
    network, random = NETWORKS[name](), np.random.default_rng(2)
    network.parameters += random.normal(0, 0.1, network.parameters.size)  # avoids biases of 0, at ReLU's edge
    _, gradient = network.gradient(BATCH)
    direction = random.normal(size=gradient.size).astype(np.float32)
    for layer in network.layers:
        alone = np.zeros_like(direction)
        alone[layer.begin : layer.end] = direction[layer.begin : layer.end]
        at, step, losses = network.parameters.copy(), 1e-3, list[float]()
        for sign in (1, -1):
            network.parameters[:] = at + sign * step * alone
            losses.append(network.gradient(BATCH)[0])
        network.parameters[:] = at
        slope = (losses[0] - losses[1]) / (2 * step)
        assert slope == pytest.approx(float(gradient @ alone), rel=0.05, abs=2e-3), layer.name


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("family", FAMILIES)
def test_gradients_have_the_same_bits_in_every_order(name: str, family: str) -> None:
    network = NETWORKS[name]()
    _, usual = network.gradient(BATCH)
    fronts = range(len(network.layers) + 1) if family in WITH_FRONT else [0]
    for front in fronts:
        network.begin(BATCH)
        for layer in range(len(network.layers)):
            network.forward(layer)
        network.loss()
        gradient = np.full_like(usual, np.nan)
        for step in PassSchedule(family, 100, front).order(len(network.layers)):
            network.step(step, gradient)
        assert np.array_equal(gradient, usual)


@pytest.mark.parametrize("name", NETWORKS)
def test_networks_learn(name: str) -> None:
    network, shard = NETWORKS[name](), load_shard(0, 1, 1)
    for iteration in range(1, 200):
        network.parameters -= np.float32(0.2) * network.gradient(shard.batch(iteration, 32))[1]
    assert network.accuracy(shard.held_out) > 0.75
