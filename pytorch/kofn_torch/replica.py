"""A worker's copy of a training's state, for peers that start late or rejoin: parameters, optimizer, scheduler.

The training thread changes the copy in steps. A peer may ask for the copy at any time, and gets the state between two
steps.
"""

import io
import threading
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import torch

from kofn_common.results.memory import Memory
from kofn_host.arrays import Arrays, Integers, fitting
from kofn_host.training import Aggregate, Plan
from kofn_host.workload import ReplicaState
from kofn_torch.errors import TorchError
from kofn_torch.layout import ParameterLayout
from kofn_torch.staging import settle
from kofn_torch.untrained import UntrainedState

STEP_S = 4.0
"""The longest wait for the end of a step, when a peer asks for the replica during the step."""


class Stateful(Protocol):
    """An object with state: an optimizer, a scheduler, a module."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state_dict: dict[str, Any]) -> Any: ...


class ModelReplica:
    """The parameters of `layout` and the rest of the model; `parts` holds the other parts of a replica by name; `parts`
    is None if they are unknown.

    `blocks` is the number of a gradient's blocks whose results have checksums, `plan` the first iteration's plan.
    `note` identifies layout and initial parameters among the workers.
    """

    def __init__(
        self, layout: ParameterLayout, untrained: UntrainedState, blocks: int, plan: Plan, note: Integers
    ) -> None:
        self.layout, self.note, self._untrained = layout, note, untrained
        self.parts: Mapping[str, Stateful] | None = None
        self.iteration = 0
        """The last iteration that the replica contains."""
        self.results: Integers = np.zeros(blocks, np.int64)
        """The sum of all results' checksums."""
        self.plan = plan
        """The next iteration's plan."""
        self.rejoined = False
        """Whether the replica was taken over from another worker since this process began."""
        self._changed = threading.Condition()
        self._changing = False

    def start(self, iteration: int) -> None:
        """Take the initial parameters, equal at all workers, as the parameters after this iteration."""
        self.iteration = iteration

    def check_notes(self, notes: Mapping[int, Sequence[int]]) -> None:
        """Raise TorchError if a worker trains another model or began with another state; `notes` are by rank."""
        own = self.note.tolist()
        for rank, (digest, begins, elements) in notes.items():
            if [digest, elements] != own[::2]:
                raise TorchError(
                    f"worker {rank} must train this worker's model of {own[2]} elements, got another model of"
                    f" {elements}: names, shapes, strides and dtypes of all parameters and buffers must agree"
                )
            if begins != own[1]:
                raise TorchError(
                    f"worker {rank} began with other parameters or buffers (frozen parameters count): give all workers"
                    " the same seed or one process group, and load a state at all workers or at none"
                )

    def begin_change(self) -> None:
        """Begin a step, which end_change() ends."""
        with self._changed:
            self._changing = True

    def end_change(self) -> None:
        with self._changed:
            self._changing = False
            self._changed.notify_all()

    def applied(self, update: Aggregate) -> None:
        """Note that the step of an iteration was made."""
        self.results += update.checksums
        self.plan, self.iteration = update.plan, update.iteration

    def state(self) -> ReplicaState | None:
        """Return a copy; None if a step takes longer than STEP_S, or if the optimizer is unknown."""
        with self._changed:
            if self.parts is None or not self._changed.wait_for(lambda: not self._changing, STEP_S):
                return None
            settle(self.layout.device)
            saved = {name: _saved(part) for name, part in self.parts.items()}
            return ReplicaState(iteration=self.iteration, arrays=self._arrays() | saved)

    def restore(self, state: ReplicaState) -> None:
        """Become another worker's replica. Raise TorchError if that replica is of another model, or if the optimizer is
        unknown."""
        if self.parts is None:
            raise TorchError(
                "ddp_hook() must be called before the job starts, because it cannot continue from another worker's"
                " state: kofn_torch.elastic() can, because it knows the optimizer"
            )
        try:
            taken = {name: fitting(state.arrays, name, array) for name, array in self._arrays().items()}
            for name, part in self.parts.items():
                part.load_state_dict(_loaded(state.arrays[name]))
        except (ValueError, LookupError, RuntimeError) as error:
            raise TorchError(f"another worker's state does not fit this model and optimizer: {error}") from error
        self._take(taken)
        self.iteration, self.rejoined = state.iteration, True

    @property
    def memory(self) -> Memory:
        """Return the memory of parameters, their gradients and, if it is known, the optimizer's state."""
        parameters = list(self.layout.parameters.values())
        gradients = (parameter.grad.nbytes for parameter in parameters if parameter.grad is not None)
        state = getattr((self.parts or {}).get("optimizer"), "state", {})
        tensors = (value for own in state.values() for value in own.values() if isinstance(value, torch.Tensor))
        return Memory(
            parameters=sum(parameter.nbytes for parameter in parameters),
            gradients=sum(gradients),
            optimizer=sum(tensor.nbytes for tensor in tensors),
        )

    def _arrays(self) -> Arrays:
        named: Arrays = {
            "parameters": self.layout.values(),
            "untrained": self._untrained.values(),
            "results": self.results.copy(),
            "note": self.note.copy(),
        }
        return named | self.plan.to_arrays()

    def _take(self, arrays: Arrays) -> None:
        self.layout.load(arrays["parameters"].astype(np.float32, copy=False))
        self._untrained.load(np.asarray(arrays["untrained"], np.uint8))
        self.results[:], self.note[:] = arrays["results"], arrays["note"]
        self.plan = Plan.from_arrays(arrays)
        settle(self.layout.device)


def _saved(part: Stateful) -> Any:
    out = io.BytesIO()
    torch.save(part.state_dict(), out)
    return np.frombuffer(out.getvalue(), np.uint8)


def _loaded(saved: Any) -> dict[str, Any]:
    state: dict[str, Any] = torch.load(io.BytesIO(saved.tobytes()), map_location="cpu", weights_only=True)
    return state
