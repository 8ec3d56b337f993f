"""The part of a training's state that is in no model, optimizer or scheduler, for the checkpoints of a script.

A state is a dictionary of tensors, numbers and texts. All workers share the entries "of" (the kind of object whose
state it is), "workers", "iteration" and some others. Each worker adds one entry, "worker-0" for example. So the union
of several workers' states is a state.
"""

import logging
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from kofn_host.arrays import Integers
from kofn_host.training import Agent, Magnitudes, Pending, Reducer, enter_pending, pending_after
from kofn_torch.errors import TorchError
from kofn_torch.layout import ParameterLayout
from kofn_torch.replica import ModelReplica

log = logging.getLogger(__name__)

WORKER = "worker-"
"""The prefix of a worker's own entry."""

SESSION = "session"
"""The entry "of" in the state of a session."""

State = dict[str, Any]

Tensors = Mapping[str, torch.Tensor]

CONTIGUOUS: Any = torch.contiguous_format


def taken(states: Sequence[State], of: str, takes: Callable[[int], Sequence[int]]) -> tuple[State, dict[int, State]]:
    """Return the union of states, and the entries of the workers that are taken over, by rank.

    Raise TorchError for a state with another entry "of", states of different checkpoints, or a missing entry.
    """
    for state in states:
        if not isinstance(state, Mapping) or state.get("of") != of:
            found = [*state] if isinstance(state, Mapping) else type(state).__name__
            raise TorchError(f"a state must be that of a {of}, as its state_dict() returns it, got {found}")
    if len({state["iteration"] for state in states}) != 1 or len({state["workers"] for state in states}) != 1:
        described = ", ".join(f"iteration {state['iteration']} of {state['workers']} workers" for state in states)
        raise TorchError(f"all states must be of one iteration and one number of workers, got {described or 'none'}")
    whole = {name: entry for state in states for name, entry in state.items()}
    ranks = takes(whole["workers"])
    if missing := [rank for rank in ranks if f"{WORKER}{rank}" not in whole]:
        raise TorchError(
            f"this worker must be given the states of workers {ranks} of {whole['workers']}, got none of {missing}:"
            " load_state_dict() takes several states"
        )
    return whole, {rank: whole[f"{WORKER}{rank}"] for rank in ranks}


class ResumableSession(ABC):
    """The state of a Session: its worker's pending gradients by parameter name, in units of 2**-40.

    The model, its optimizer and its scheduler are saved by the script, after the same iteration.
    """

    rank: int
    workers: int
    layout: ParameterLayout
    replica: ModelReplica
    reducer: Reducer
    _passes: int

    @property
    def save_every(self) -> int:
        """The number of iterations from one state to the next; 0 if no state is kept. A script must set it if k < n,
        because the other workers may already be in a later iteration when the script asks for the state."""
        return 0 if self.reducer.ledger is None else self.reducer.ledger.state.copy_every

    @save_every.setter
    def save_every(self, iterations: int) -> None:
        if self.reducer.ledger is not None:
            self.reducer.ledger.state.copy_every = iterations

    def state_dict(self) -> State:
        """Return this worker's state after the latest iteration: the pending gradients, which no step has used yet.

        Raise TorchError in the middle of an iteration, or if k < n and the iteration is no multiple of save_every.
        """
        self._end_iteration()
        iteration, own = self.replica.iteration, State(rank=self.rank)
        state = State(of=SESSION, workers=self.workers, iteration=iteration) | {f"{WORKER}{self.rank}": own}
        if isinstance(self.reducer, Agent):
            found = pending_after(self.reducer, iteration)
            if found is None:
                raise TorchError(
                    f"session.save_every must divide iteration {iteration}, got {self.save_every}: later sums already"
                    f" have some of the gradients that were pending after iteration {iteration}"
                )
            own["pending"] = self._named(found.values)
            if found.weights.any():
                weights = np.broadcast_to(found.weights[:, None], found.values.shape)
                own["weights"] = self._named(weights.astype(np.int32))
            if (expected := self.replica.plan.expected) is not None:
                state["expected"] = torch.from_numpy(np.stack([expected.mean, expected.largest]))
        return state

    def load_state_dict(self, *states: State) -> None:
        """Take over pending gradients from the state_dict()s of one iteration, before training.

        Each worker takes its own state, and its share of the states of ranks that are gone. A new worker begins without
        pending gradients. A state has no count of iterations (each job counts from its first), no ages of gradients, no
        list of the blocks that compress.ratio omitted last, and no measurements of the controller. A worker that
        rejoins ignores the states, because its ledger is newer. Raise TorchError, without any change, for another
        model's state.
        """
        whole, own = taken(states, SESSION, self.takes)
        pending = [entry["pending"] for entry in own.values() if "pending" in entry]
        for tensors in pending:
            check_model({name: tensor.shape for name, tensor in tensors.items()}, self.layout.parameters)
        if self.replica.rejoined:
            log.warning("worker %d goes on from a peer's state and ignores the older state to load", self.rank)
            return
        if self._passes:
            raise TorchError("load_state_dict() must come before the first backward pass")
        if not isinstance(self.reducer, Agent):
            if pending:
                raise TorchError("job.collective must be one with a ledger, because the state has pending gradients")
            return
        layout, expected = self.reducer.encoder.coding.layout, whole.get("expected")
        shape = layout.blocks, layout.elements
        values = self._summed(pending, shape)
        weights = self._summed([entry["weights"] for entry in own.values() if "weights" in entry], shape).max(1)
        magnitudes = None
        if expected is not None and expected.shape == (2, layout.blocks):
            mean, largest = expected.numpy()
            magnitudes = Magnitudes(mean=mean, largest=largest)
        enter_pending(self.reducer, Pending(values, weights), magnitudes)
        begins = zlib.crc32(repr((whole["iteration"], whole["workers"])).encode(), int(self.replica.note[1]))
        self.replica.note[1] = begins >> 1
        self._tell_note()

    def takes(self, saved: int) -> list[int]:
        """Return the workers whose entries this worker takes over, among the `saved` workers of a state."""
        return [rank for rank in range(saved) if rank % self.workers == self.rank]

    @abstractmethod
    def _end_iteration(self) -> None:
        """Take in the latest iteration. Raise TorchError in the middle of an iteration."""

    @abstractmethod
    def _tell_note(self) -> None:
        """Tell the other workers the state that this worker began with."""

    def _summed(self, summands: Sequence[Tensors], shape: tuple[int, int]) -> Integers:
        """Return the sum of values by parameter name in the ledger's places and shape."""
        total = np.zeros(shape, np.int64)
        for saved in summands:
            for name, view in self.layout.views(total.reshape(-1)):
                view.add_(saved[name])
        return total

    def _named(self, values: Integers) -> Tensors:
        """Return a copy of the ledger's values by parameter name."""
        return {name: view.clone(memory_format=CONTIGUOUS) for name, view in self.layout.views(values.reshape(-1))}


def check_model(saved: Mapping[str, Sequence[int]], own: Mapping[str, torch.Tensor]) -> None:
    """Raise TorchError if the names or shapes of saved parameters differ from those of a model's parameters."""
    wanted, found = (
        {name: [*tensor.shape] for name, tensor in own.items()},
        {name: [*shape] for name, shape in saved.items()},
    )
    for name in {**wanted, **found}:
        if wanted.get(name) != found.get(name):
            words = [shapes.get(name, "no such parameter") for shapes in (wanted, found)]
            raise TorchError(f"the state must be of this model: {name} must have the shape {words[0]}, got {words[1]}")
