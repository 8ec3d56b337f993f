"""A worker's copy of what all workers have alike: parameters, the optimizer's state, and checksums of all results.

The training thread applies results; peers may ask for the whole at any time: a lock keeps each answer between two
iterations.
"""

import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from kofn.config.schema import Config
from kofn.host.arrays import Floats, Integers
from kofn.host.compression.plan import Plan
from kofn.host.errors import AgentError
from kofn.host.workload.evaluation import Evaluation, Evaluator
from kofn.host.workload.optimizer import Arrays, Momentum, fitting
from kofn.host.workload.workload import Workload
from kofn.results.memory import Memory

OPTIMIZER = "optimizer."
"""What the names of an optimizer's arrays begin with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaState:
    """Everything after `iteration`: "parameters" float32 (elements,), "results" int64 (blocks,), "values" float64
    (those that workload.evaluation takes the mean of,), the next iteration's plan (compression.plan), and what the
    optimizer has, "optimizer.velocity" for example.
    """

    iteration: int
    arrays: Arrays


class Replica:
    """Holds the arrays of the model, its optimizer and its evaluator, which change in place, and the next plan.

    `blocks`: of a gradient, whose results have checksums; 0: there are none.  `more`: what else all workers have
    alike, by name, which changes in place.
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
        self._iteration: int | None = None
        self._stepped: dict[tuple[int, int], Arrays] = {}  # parts that are an iteration ahead, and what they were
        self.results: Integers = np.zeros(blocks, np.int64)
        """Checksums of all results, added up: of what all workers together had counted."""
        self._arrays: Arrays = {
            "parameters": workload.parameters,
            "results": self.results,
            "values": self.evaluator.recent,
            **plan.to_arrays(),
            **(more or {}),
        }

    def start(self, iteration: int) -> None:
        """The initial parameters, the same everywhere, are those after this iteration."""
        self._iteration = iteration

    def step_part(self, begin: int, end: int, mean: Floats) -> None:
        """The part of apply() that concerns parameters `begin` to `end`, before it: mean is of shape (end - begin,)."""
        with self._lock:
            self._stepped[begin, end] = {name: array[begin:end].copy() for name, array in self._by_parameter.items()}
            self.optimizer.step_part(mean, begin, end)

    def apply(self, iteration: int, mean: Floats, checksums: Integers, plan: Plan) -> Evaluation:
        """An iteration's average gradient, shape (elements,), checksums of what it was made from, the plan after it."""
        with self._lock:
            if not self._stepped:
                self.optimizer.step(mean)
            for begin, end in self._rest(mean.size):
                self.optimizer.step_part(mean[begin:end], begin, end)
            self._stepped.clear()
            self.results += checksums
            self._arrays |= plan.to_arrays()
            self._iteration = iteration
            return self.evaluator.look(iteration)

    def state(self) -> ReplicaState | None:
        """A copy; None before the first parameters are there."""
        with self._lock:
            if self._iteration is None:
                return None
            own = {OPTIMIZER + name: array for name, array in self.optimizer.state().items()}
            arrays = {name: array.copy() for name, array in (self._arrays | own).items()}
            for (begin, end), before in self._stepped.items():
                for name, part in before.items():
                    arrays[name][begin:end] = part
            return ReplicaState(iteration=self._iteration, arrays=arrays)

    def restore(self, state: ReplicaState) -> None:
        """Become another replica; AgentError when its arrays are of another model."""
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
                self._iteration = state.iteration
        except (ValueError, LookupError, RuntimeError) as error:  # as a foreign optimizer may have it
            raise AgentError(str(error)) from error

    @property
    def memory(self) -> Memory:
        """A gradient is as large as the parameters."""
        parameters, own = self._arrays["parameters"].nbytes, self.optimizer.state().values()
        return Memory(parameters=parameters, gradients=parameters, optimizer=sum(each.nbytes for each in own))

    @property
    def _by_parameter(self) -> Arrays:
        """What a step of some parameters changes in the same places."""
        parameters = self._arrays["parameters"]
        own = {OPTIMIZER + name: array for name, array in self.optimizer.state().items()}
        alike = {name: array for name, array in own.items() if array.shape == parameters.shape}
        return {"parameters": parameters} | alike

    def _rest(self, elements: int) -> list[tuple[int, int]]:
        """Ranges that are not stepped, where others are."""
        if not self._stepped:
            return []
        edges = [0, *(edge for part in sorted(self._stepped) for edge in part), elements]
        return [(begin, end) for begin, end in zip(edges[::2], edges[1::2], strict=True) if begin < end]


def to_parts(state: ReplicaState, part_bytes: int = 1 << 20) -> Iterator[tuple[str, bytes]]:
    """A state's arrays in pieces, each with the array's name, type and shape ("parameters:float32:4810")."""
    for name, array in state.arrays.items():
        data = array.tobytes()
        for start in range(0, max(len(data), 1), part_bytes):
            shape = "x".join(map(str, array.shape))
            yield f"{name}:{array.dtype.name}:{shape}", data[start : start + part_bytes]


def from_parts(iteration: int, parts: dict[str, bytes]) -> ReplicaState:
    """What to_parts() made, put together."""
    arrays: Arrays = {}
    for header, data in parts.items():
        name, kind, shape = header.split(":")
        arrays[name] = np.frombuffer(bytearray(data), kind).reshape([int(size) for size in shape.split("x") if size])
    return ReplicaState(iteration=iteration, arrays=arrays)
