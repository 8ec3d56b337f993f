"""States of sessions through a real switch: saved by the script, and loaded by the same or another number of workers."""

import io
from collections.abc import Callable, Sequence
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

if find_spec("torch") is None:
    pytest.skip("torch is not installed: kofn/run/setup.sh torch", allow_module_level=True)

import torch
from torch import nn

import kofn.torch
from kofn.torch.errors import TorchError
from kofn.torch.state import State
from tests.host.collectives.switched import HOSTS
from tests.torch.crew import Crew, SwitchedJob, crew, ddp
from tests.torch.test_hook import layers

SAVED, LAST = 6, 14


def stored(state: Any) -> Any:
    """Return what torch.load() makes of a saved state."""
    file = io.BytesIO()
    torch.save(state, file)
    return torch.load(io.BytesIO(file.getvalue()), weights_only=True)


def loss_of(model: Any, rank: int, step: int) -> torch.Tensor:
    data = torch.Generator().manual_seed(1000 * rank + step)
    images, labels = torch.randn(16, 64, generator=data), torch.randint(0, 10, (16,), generator=data)
    return nn.functional.cross_entropy(model(images), labels)


class Training:
    """A worker's model and optimizer, from the start or from what save() returned."""

    def __init__(self, job: SwitchedJob, start: State | None = None) -> None:
        self.job, self.model = job, ddp(layers, bucket_cap_mb=0.01)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05, momentum=0.9)
        self.losses = list[float]()
        if start is not None:
            self.model.load_state_dict(start["model"])
            self.optimizer.load_state_dict(start["optimizer"])

    def save(self, session: Any) -> State:
        return stored(
            {
                "model": self.model.state_dict(),
                "optimizer": self.optimizer.state_dict(),
                "kofn": session.state_dict(),
            }
        )

    def hook(self, steps: range, states: Sequence[State] = (), save_at: int = 0) -> State | None:
        saved = None
        with closing(kofn.torch.ddp_hook(self.model, job=self.job)) as session:
            if states:
                session.load_state_dict(*states)
            for step in steps:
                loss = loss_of(self.model, self.job.rank, step)
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()
                self.losses.append(loss.item())
                if step == save_at:
                    saved = self.save(session)
        return saved


def test_hook_goes_on_to_the_bit(tmp_path: Path) -> None:
    def whole(job: SwitchedJob) -> tuple[list[float], State | None]:
        training = Training(job)
        return training.losses, training.hook(range(LAST), save_at=SAVED)

    with crew(tmp_path, LAST) as made:
        found = made.all(whole)
    saved = [each for _, each in found if each is not None]
    states = [each["kofn"] for each in saved]
    assert any(tensor.any() for tensor in states[0]["worker-0"]["pending"].values())

    def rest(job: SwitchedJob) -> list[float]:
        training = Training(job, saved[job.rank])
        training.hook(range(SAVED + 1, LAST), states)
        return training.losses

    with crew(tmp_path, LAST - SAVED - 1) as made:
        assert made.all(rest) == [losses[SAVED + 1 :] for losses, _ in found]
