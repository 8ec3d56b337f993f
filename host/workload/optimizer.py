"""From an average gradient to the next parameters, in the same way at every worker."""

from abc import ABC, abstractmethod

import numpy as np
import numpy.typing as npt

from kofn.host.arrays import Floats
from kofn.host.kernels.kernel import kernel

Arrays = dict[str, npt.NDArray[np.generic]]


class Optimizer(ABC):
    """Changes a workload's parameters in place; the same gradients give the same bits on every replica."""

    @abstractmethod
    def step(self, gradient: Floats) -> None:
        """One update by an iteration's average gradient, shape of the parameters, which is not to be kept."""

    def step_part(self, gradient: Floats, begin: int, end: int) -> None:
        """The same of parameters `begin` to `end` alone, shape (end - begin,); all parts come once, in any order.

        What changes of state() is in the same places of arrays that are shaped as the parameters are.
        """
        raise NotImplementedError(f"{type(self).__name__} has no step_part(): layers are stepped one by one")

    @abstractmethod
    def state(self) -> Arrays:
        """All that the next step depends on beside parameters and gradient, by name."""

    @abstractmethod
    def restore(self, state: Arrays) -> None:
        """Go on as the optimizer of another replica, whose state() this is; ValueError where it does not fit."""


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


def fitting(given: Arrays, name: str, wanted: npt.NDArray[np.generic]) -> npt.NDArray[np.generic]:
    """An array of this name, as large and of the same kind as `wanted`; ValueError where it is not."""
    found = given.get(name)
    if found is None or (found.shape, found.dtype) != (wanted.shape, wanted.dtype):
        what = "nothing" if found is None else f"{found.dtype} {found.shape}"
        raise ValueError(f"a peer's {name} must be {wanted.dtype} {wanted.shape}, got {what}")
    return found
