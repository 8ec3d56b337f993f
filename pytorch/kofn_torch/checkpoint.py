"""Reads states (kofn_torch.state) from a checkpoint of torch.distributed.checkpoint, for any number of workers.

No other module of kofn_torch imports this one, because torch.distributed.checkpoint takes a second to import.
"""

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch.distributed.checkpoint import DefaultLoadPlanner
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata

from kofn_torch.state import WORKER, State


class TakesStates(Protocol):
    """A session or a sharded optimizer."""

    def takes(self, saved: int) -> Sequence[int]:
        """Return the workers whose entries this worker needs, among the `saved` workers of a state."""


class LoadPlanner(DefaultLoadPlanner):  # type: ignore[misc]  # no types of PyTorch's are read
    """Has torch.distributed.checkpoint.load() read the entries of all workers that `of` takes over.

        dcp.load({"kofn": session}, checkpoint_id=folder, planner=LoadPlanner(session))

    A session or a sharded optimizer needs this planner if another number of workers may have saved the state.
    """

    def __init__(self, of: TakesStates) -> None:
        super().__init__()
        self._of = of

    def set_up_planner(self, state_dict: State, metadata: Metadata | None = None, is_coordinator: bool = False) -> None:
        assert metadata is not None
        for key in [key for key, own in state_dict.items() if _is_state(own)]:
            saved = {path: name for name, path in metadata.planner_data.items() if path[0] == key}
            ranks = {int(path[1].removeprefix(WORKER)) for path in saved if path[1].startswith(WORKER)}
            needed = {f"{WORKER}{rank}" for rank in self._of.takes(len(ranks))}
            state_dict[key].clear()
            for path, name in saved.items():
                if path[1] in needed or not path[1].startswith(WORKER):
                    _put(state_dict, path, _place(metadata.state_dict_metadata[name]))
        super().set_up_planner(state_dict, metadata, is_coordinator)


def _is_state(value: object) -> bool:
    return isinstance(value, dict) and any(str(name).startswith(WORKER) for name in value)


def _put(target: State, path: Sequence[str], value: object) -> None:
    """Put a value in nested dictionaries."""
    for name in path[:-1]:
        target = target.setdefault(name, {})
    target[path[-1]] = value


def _place(saved: Any) -> torch.Tensor | None:
    """Return memory for a saved tensor; None for another saved value, which replaces the None."""
    return torch.empty(saved.size, dtype=saved.properties.dtype) if isinstance(saved, TensorStorageMetadata) else None
