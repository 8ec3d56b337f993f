"""Optimizers: from an average gradient to the next parameters, which are the same at every worker."""

from abc import ABC, abstractmethod

import numpy as np

from kofn_host.arrays import Arrays, Floats, fitting
from kofn_host.kernels.kernel import kernel


class Optimizer(ABC):
    """Updates a workload's parameters in place; the same gradients give the same bits on every replica."""

    @abstractmethod
    def step(self, gradient: Floats) -> None:
        """Update by an iteration's average gradient, of the parameters' shape; do not keep the array."""

    def step_part(self, gradient: Floats, begin: int, end: int) -> None:
        """Update only parameters `begin` to `end` by their gradient, (end - begin,).

        An iteration updates every part once, in any order.  This method may change state() only at the same places of
        arrays with the parameters' shape.
        """
        raise NotImplementedError(f"{type(self).__name__} needs a step_part(): layers are stepped one by one")

    @abstractmethod
    def state(self) -> Arrays:
        """Return all arrays, by name, on which the next step depends, besides parameters and gradient."""

    @abstractmethod
    def restore(self, state: Arrays) -> None:
        """Continue from another replica's state(); ValueError if that state does not fit."""


class Momentum(Optimizer):
    """SGD with momentum: velocity = momentum * velocity + gradient; parameters -= rate * velocity."""

    def __init__(self, parameters: Floats, *, rate: float, momentum: float) -> None:
        self._parameters = parameters
        self.velocity = np.zeros_like(parameters)
        self._rate, self._momentum = rate, momentum

    def step(self, gradient: Floats) -> None:
        self.step_part(gradient, 0, gradient.size)

    def step_part(self, gradient: Floats, begin: int, end: int) -> None:
        velocity, parameters = self.velocity[begin:end], self._parameters[begin:end]
        kernel().step(gradient, velocity, parameters, rate=self._rate, momentum=self._momentum)

    def state(self) -> Arrays:
        return {"velocity": self.velocity}

    def restore(self, state: Arrays) -> None:
        self.velocity[:] = fitting(state, "velocity", self.velocity)
