"""A worker's copy of what all workers have alike: parameters, the optimizer's state, and the sum of all results.

The training thread applies results; peers may ask for the whole at any time: a lock keeps each answer between two
iterations.
"""

import threading
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kofn.host.arrays import Fixed, Floats
from kofn.host.compression.plan import Plan
from kofn.host.errors import AgentError
from kofn.host.workload.evaluation import Evaluates, Evaluation
from kofn.host.workload.model import Momentum

Arrays = dict[str, npt.NDArray[np.float32] | npt.NDArray[np.float64] | npt.NDArray[np.int64]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaState:
    """Everything after `iteration`: "parameters" and "velocity" float32 (elements,), "results" int64 (elements,),
    "accuracies" float64 (those that workload.evaluation takes the mean of,), and the next iteration's plan
    (compression.plan).
    """

    iteration: int
    arrays: Arrays


class Replica:
    """Holds the arrays of the model, its optimizer and its evaluator, which change in place, and the next plan.

    `results`: elements of all blocks.
    """

    def __init__(self, parameters: Floats, optimizer: Momentum, evaluator: Evaluates, results: int, plan: Plan) -> None:
        self._lock = threading.Lock()
        self._optimizer, self._evaluator = optimizer, evaluator
        self._iteration: int | None = None
        self._results: Fixed = np.zeros(results, np.int64)
        self._newest: Fixed | None = None  # result, which is not in the sum of all yet
        self._arrays: Arrays = {
            "parameters": parameters,
            "velocity": optimizer.velocity,
            "results": self._results,
            "accuracies": evaluator.recent,
            **plan.to_arrays(),
        }

    @property
    def results(self) -> Fixed:
        """Sum of all results in units of 2**-40, padded to whole blocks: what all workers together had counted."""
        self.add_up()
        return self._results

    def start(self, iteration: int) -> None:
        """The initial parameters, the same everywhere, are those after this iteration."""
        self._iteration = iteration

    def apply(self, iteration: int, mean: Floats, total: Fixed, plan: Plan) -> Evaluation:
        """One iteration's average gradient, shape (elements,), the sum that it was made from, and the plan after it."""
        with self._lock:
            self._add_up()
            self._optimizer.step(mean)
            self._newest = total.ravel()
            self._arrays |= plan.to_arrays()
            self._iteration = iteration
            return self._evaluator.look(iteration)

    def add_up(self) -> None:
        """What apply() has left for when there is time: the sum of all results; else it is done when it is needed."""
        with self._lock:
            self._add_up()

    def _add_up(self) -> None:
        if self._newest is not None:
            self._results += self._newest
            self._newest = None

    def state(self) -> ReplicaState | None:
        """A copy; None before the first parameters are there."""
        with self._lock:
            if self._iteration is None:
                return None
            self._add_up()
            return ReplicaState(
                iteration=self._iteration, arrays={name: array.copy() for name, array in self._arrays.items()}
            )

    def restore(self, state: ReplicaState) -> None:
        """Become another replica; AgentError when its arrays are of another model."""
        for name, array in self._arrays.items():
            given = state.arrays.get(name)
            if given is None or (given.shape, given.dtype) != (array.shape, array.dtype):
                found = "nothing" if given is None else f"{given.dtype} {given.shape}"
                raise AgentError(f"a peer's {name} are {found}: {array.dtype} {array.shape} is allowed")
        with self._lock:
            self._newest = None
            for name, array in self._arrays.items():
                array[:] = state.arrays[name]
            self._iteration = state.iteration


def to_parts(state: ReplicaState, part_bytes: int = 1 << 20) -> Iterator[tuple[str, bytes]]:
    """A state's arrays in pieces."""
    for name, array in state.arrays.items():
        data = array.tobytes()
        for start in range(0, len(data), part_bytes):
            yield name, data[start : start + part_bytes]


def from_parts(iteration: int, parts: dict[str, bytes]) -> ReplicaState:
    """What to_parts() made, put together; arrays that nobody knows are left out."""
    kinds = {"parameters": np.float32, "velocity": np.float32, "results": np.int64, "accuracies": np.float64}
    kinds |= {"plan": np.int64, "expected": np.float64}
    arrays: Arrays = {name: np.frombuffer(data, kinds[name]) for name, data in parts.items() if name in kinds}
    return ReplicaState(iteration=iteration, arrays=arrays)
