"""A workload in NumPy, with its own data, optimizer, metric and target: a line through points, by AdaGrad."""

import numpy as np

from kofn import Metric, Optimizer, Workload

FEATURES = 64


class AdaGrad(Optimizer):
    """Parameters -= rate * gradient / sqrt(sum of squared gradients)."""

    def __init__(self, parameters, rate):
        self.parameters, self.rate, self.squares = parameters, np.float32(rate), np.zeros_like(parameters)

    def step(self, gradient):
        self.squares += gradient * gradient
        self.parameters -= self.rate * gradient / np.sqrt(self.squares + np.float32(1e-8))

    def state(self):
        return {"squares": self.squares}

    def restore(self, state):
        self.squares[:] = state["squares"]


class Linear(Workload):
    """Each worker draws its own points; all have the same held-out ones."""

    metric = Metric(name="mean squared error", better="lower", target=0.05)

    def __init__(self, config, rank):
        random = np.random.default_rng(config.run.seed)  # the same line and the same held-out points everywhere
        self.line = random.normal(size=FEATURES).astype(np.float32)
        self.held_out = self._points(random, 500)
        self.parameters = np.zeros(FEATURES, np.float32)
        self.optimizer = AdaGrad(self.parameters, rate=0.1)
        self.seed, self.batch = (config.run.seed, rank), config.model.batch

    def gradient(self, iteration, batch=0):
        x, y = self._points(np.random.default_rng((*self.seed, iteration, batch)), self.batch)
        error = x @ self.parameters - y
        return float(np.mean(error**2)), 2 * x.T @ error / np.float32(len(y))

    def evaluate(self):
        x, y = self.held_out
        return float(np.mean((x @ self.parameters - y) ** 2))

    def _points(self, random, number):
        x = random.normal(size=(number, FEATURES)).astype(np.float32)
        return x, x @ self.line + np.float32(0.1) * random.normal(size=number).astype(np.float32)
