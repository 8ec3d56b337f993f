"""A worker's replica of the state that all workers share: parameters, optimizer state, and checksums of all results.

The training thread applies results.  Peers may fetch the replica at any time; a lock ensures that they get the state
between two iterations.
"""

import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kofn_common.config.schema import Config
from kofn_common.results.memory import Memory
from kofn_host.arrays import Arrays, Floats, Integers, copied, fitting
from kofn_host.compression.plan import Plan
from kofn_host.errors import AgentError
from kofn_host.workload.evaluation import Evaluation, Evaluator
from kofn_host.workload.optimizer import Momentum
from kofn_host.workload.workload import Workload

UNSTARTED = -1
"""The iteration of a replica before start()."""

OPTIMIZER = "optimizer."
"""The prefix of the names of an optimizer's arrays."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaState:
    """The state after `iteration`.

    `arrays`: "parameters", float32 (elements,); "results", int64 (blocks,); "values", float64, the values whose mean
    workload.evaluation takes; the next iteration's plan (compression.plan); and the optimizer's arrays, for example
    "optimizer.velocity".
    """

    iteration: int
    arrays: Arrays


class Replica:
    """The arrays of the model, its optimizer and its evaluator, which change in place, and the next plan.

    `blocks`: the number of blocks whose results have checksums.  `more`: further arrays, by name, that all workers
    share and that change in place.
    """

    def __init__(
        self, workload: Workload, config: Config, blocks: int, plan: Plan, more: Mapping[str, Integers] | None = None
    ) -> None:
        self._lock = threading.Lock()
        model, run = config.model, config.run
        self.optimizer = workload.optimizer or Momentum(
            workload.parameters, rate=model.learning_rate, momentum=model.momentum
        )
        self.evaluator = Evaluator(workload, over=run.accuracy_over, every=run.evaluate_every, last=run.max_iterations)
        self.iteration = UNSTARTED
        """The latest applied iteration."""
        self._stepped: dict[tuple[int, int], Arrays] = {}  # the values before step_part() of parts that are ahead
        self.results: Integers = np.zeros(blocks, np.int64)
        """The sum of the checksums of all results, that is, of all workers' counted contributions."""
        self._arrays: Arrays = {
            "parameters": workload.parameters,
            "results": self.results,
            "values": self.evaluator.recent,
            **plan.to_arrays(),
            **(more or {}),
        }

    def start(self, iteration: int) -> None:
        """Begin with the initial parameters, which count as the parameters after this iteration."""
        self.iteration = iteration

    def step_part(self, begin: int, end: int, mean: Floats) -> None:
        """Apply the mean of parameters `begin` to `end`, (end - begin,), before apply() does the rest."""
        with self._lock:
            self._stepped[begin, end] = {name: array[begin:end].copy() for name, array in self._by_parameter.items()}
            self.optimizer.step_part(mean, begin, end)

    def apply(self, iteration: int, mean: Floats, checksums: Integers, plan: Plan) -> Evaluation:
        """Apply an iteration's average gradient, (elements,), its results' checksums, and the next plan; evaluate."""
        with self._lock:
            if not self._stepped:
                self.optimizer.step(mean)
            for begin, end in self._rest(mean.size):
                self.optimizer.step_part(mean[begin:end], begin, end)
            self._stepped.clear()
            self.results += checksums
            self._arrays |= plan.to_arrays()
            self.iteration = iteration
            return self.evaluator.look(iteration)

    def state(self, into: Arrays | None = None) -> ReplicaState | None:
        """Return a copy, in the memory of an earlier copy if given; None before start()."""
        with self._lock:
            if self.iteration == UNSTARTED:
                return None
            own = {OPTIMIZER + name: array for name, array in self.optimizer.state().items()}
            arrays = copied(self._arrays | own, into or {})
            for (begin, end), before in self._stepped.items():
                for name, part in before.items():
                    arrays[name][begin:end] = part
            return ReplicaState(iteration=self.iteration, arrays=arrays)

    def restore(self, state: ReplicaState) -> None:
        """Become a copy of another replica; AgentError if its arrays belong to another model."""
        own = {
            name.removeprefix(OPTIMIZER): array for name, array in state.arrays.items() if name.startswith(OPTIMIZER)
        }
        try:
            taken = {name: fitting(state.arrays, name, array) for name, array in self._arrays.items()}
            with self._lock:
                self._stepped.clear()
                self.optimizer.restore(own)
                for name, array in self._arrays.items():
                    array[:] = taken[name]
                self.iteration = state.iteration
        except (ValueError, LookupError, RuntimeError) as error:  # from custom optimizers
            raise AgentError(str(error)) from error

    @property
    def memory(self) -> Memory:
        """The memory of the replica; a gradient is as large as the parameters."""
        parameters, own = self._arrays["parameters"].nbytes, self.optimizer.state().values()
        return Memory(parameters=parameters, gradients=parameters, optimizer=sum(array.nbytes for array in own))

    @property
    def _by_parameter(self) -> Arrays:
        """The arrays that a step of some parameters changes at the same places."""
        parameters = self._arrays["parameters"]
        own = {OPTIMIZER + name: array for name, array in self.optimizer.state().items()}
        alike = {name: array for name, array in own.items() if array.shape == parameters.shape}
        return {"parameters": parameters} | alike

    def _rest(self, elements: int) -> list[tuple[int, int]]:
        """Return the ranges that step_part() has not updated; none if it has updated no part."""
        if not self._stepped:
            return []
        edges = [0, *(edge for part in sorted(self._stepped) for edge in part), elements]
        return [(begin, end) for begin, end in zip(edges[::2], edges[1::2], strict=True) if begin < end]


def to_parts(state: ReplicaState, part_bytes: int = 1 << 20) -> Iterator[tuple[str, bytes]]:
    """Yield a state's arrays in pieces, with the array's header_of() before each piece."""
    for name, array in state.arrays.items():
        data = array.tobytes()
        for start in range(0, max(len(data), 1), part_bytes):
            yield header_of(name, array), data[start : start + part_bytes]


def header_of(name: str, array: npt.NDArray[np.generic]) -> str:
    """Return an array's name, type and shape: "parameters:float32:4810"."""
    return f"{name}:{array.dtype.name}:{'x'.join(map(str, array.shape))}"


def from_parts(iteration: int, parts: Mapping[str, bytes]) -> ReplicaState:
    """Return the state from the joined pieces of to_parts()."""
    arrays: Arrays = {}
    for header, data in parts.items():
        name, kind, shape = header.split(":")
        arrays[name] = np.frombuffer(bytearray(data), kind).reshape([int(size) for size in shape.split("x") if size])
    return ReplicaState(iteration=iteration, arrays=arrays)
