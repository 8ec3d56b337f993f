"""The settings of an optimizer's groups beside their parameters: learning rates, betas, weight decay."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

Values = list[dict[str, Any]]
"""The settings of each group."""


class Hyperparameters:
    """The settings of `optimizer` at the last call of keep()."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer
        self.keep()

    def keep(self) -> None:
        self._kept = self._values()

    @property
    def changed(self) -> str | None:
        """Return the name of a setting that has changed; None if no setting has."""
        return next((name for _, settings in self._changes() for name in settings), None)

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Have the optimizer use the kept settings; afterwards restore the settings that the script has changed since
        keep()."""
        changes = self._changes()
        for group, settings in changes:
            group.update({name: kept for name, (kept, _) in settings.items()})
        try:
            yield
        finally:
            for group, settings in changes:
                group.update({name: now for name, (_, now) in settings.items()})

    def _changes(self) -> list[tuple[dict[str, Any], dict[str, tuple[Any, Any]]]]:
        """Return each group with the kept and the present value of each changed setting."""
        groups: Any = self._optimizer.param_groups
        return [
            (group, {name: (kept[name], group[name]) for name in kept if not _same(kept[name], group[name])})
            for group, kept in zip(groups, self._kept, strict=False)
        ]

    def _values(self) -> Values:
        return [
            {
                name: value.clone() if isinstance(value, torch.Tensor) else value
                for name, value in group.items()
                if name != "params"
            }
            for group in self._optimizer.param_groups
        ]


def _same(kept: Any, now: Any) -> bool:
    return kept is now or bool(kept == now)
