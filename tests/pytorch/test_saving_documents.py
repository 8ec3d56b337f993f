"""The blocks of "Save and resume" in the how-tos work as written."""

import multiprocessing
import os
from collections.abc import Sequence
from functools import partial
from importlib.util import find_spec
from multiprocessing.connection import Connection
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

if find_spec("torch") is None:
    pytest.skip("torch is not installed: kofn/run/setup.sh torch", allow_module_level=True)

import torch
import torch.distributed as dist

import kofn_torch
from tests.docs.markdown import ROOT, blocks
from tests.ports import own_port
from tests.pytorch.crew import SwitchedJob, crew_at_the_model
from tests.pytorch.test_state import Training, loss_of

pytestmark = pytest.mark.torch

PYTORCH, ZERO = (
    {block.note: block.text for block in blocks(ROOT / "docs" / "howto" / f"{page}.md") if block.note}
    for page in ("pytorch", "zero")
)

SHARDED = """
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn

import kofn_torch

dist.init_process_group("gloo")
torch.manual_seed(1)
model = nn.Sequential(nn.Linear(7, 9), nn.Tanh(), nn.Linear(9, 3))
optimizer = kofn_torch.zero(model, lr=0.1, stage=3, bits=32, through="gloo")
losses = {}

def train(steps):
    for step in steps:
        given = torch.randn(5, 7, generator=torch.Generator().manual_seed(10 * step + dist.get_rank()))
        loss = model(given).square().sum()
        loss.backward()
        optimizer.step()
        losses[step] = loss.item()
"""
"""The script around the blocks; train(steps) trains."""

TRAINED = ("train(range(4))", ZERO["save"], ZERO["save files"], ZERO["export"], "train(range(4, 8))")

_processes = multiprocessing.get_context("forkserver")
_processes.set_forkserver_preload([__name__])


def work(rank: int, workers: int, port: int, folder: Path, blocks: Sequence[str], said: Connection) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(workers))
    torch.set_num_threads(1)
    names: dict[str, Any] = {"folder": folder}
    for block in (SHARDED, *blocks):
        exec(block, names)
    said.send({step: loss for step, loss in names["losses"].items() if step >= 4})
    dist.destroy_process_group()


def losses(workers: int, folder: Path, blocks: Sequence[str]) -> list[dict[int, float]]:
    """Return the losses from step 4 on, by rank."""
    ends = [_processes.Pipe(duplex=False) for _ in range(workers)]
    with own_port() as port:
        ranks = [
            _processes.Process(target=work, args=(rank, workers, port, folder, blocks, said), daemon=True)
            for rank, (_, said) in enumerate(ends)
        ]
        for rank, (_, said) in zip(ranks, ends, strict=True):
            rank.start()
            said.close()
        try:
            assert all(heard.poll(240) for heard, _ in ends)
            return [heard.recv() for heard, _ in ends]
        finally:
            for rank in ranks:
                rank.kill()
                rank.join()


def test_zero_is_saved_by_four_processes_and_resumed_by_four_and_two(tmp_path: Path) -> None:
    """Also from files, and into a plain module."""
    whole = losses(4, tmp_path, TRAINED)
    assert [[*each] for each in whole] == [[4, 5, 6, 7]] * 4
    for note in ("resume", "resume files"):
        assert losses(4, tmp_path, (ZERO[note], "train(range(4, 8))")) == whole
    two = losses(2, tmp_path, (ZERO["resume"], "train(range(4, 8))"))
    assert [each[4] for each in two] == [each[4] for each in whole[:2]], "the same parameters"
    model = torch.nn.Sequential(torch.nn.Linear(7, 9), torch.nn.Tanh(), torch.nn.Linear(9, 3))
    model.load_state_dict(torch.load(tmp_path / "model.pt"))
    given = torch.randn(5, 7, generator=torch.Generator().manual_seed(40))
    assert model(given).square().sum().item() == whole[0][4]


def test_hooks_state_is_saved_and_resumed(tmp_path: Path) -> None:
    def save(job: SwitchedJob) -> list[float]:
        training = Training(job)
        names: dict[str, Any] = {"torch": torch, "folder": tmp_path, **vars(training)}
        names["session"] = kofn_torch.ddp_hook(training.model, job=job)
        found = train(training, range(3))
        exec(PYTORCH["save"], names)
        found += train(training, range(3, 6))
        names["session"].close()
        return found

    def train(training: Training, steps: range) -> list[float]:
        found = []
        for step in steps:
            training.optimizer.zero_grad()
            loss = loss_of(training.model, training.job.rank, step)
            loss.backward()
            training.optimizer.step()
            found.append(loss.item())
        return found

    def resume(job: SwitchedJob) -> list[float]:
        training = Training(job)
        hook = SimpleNamespace(ddp_hook=partial(kofn_torch.ddp_hook, job=job))
        names = {
            "torch": torch,
            "folder": tmp_path,
            "Path": Path,
            **vars(training),
            "kofn_torch": hook,
        }
        exec(PYTORCH["resume"], names)
        found = train(training, range(3, 6))
        names["session"].close()
        return found

    with crew_at_the_model(tmp_path, 6, 3, k=3) as made:
        whole = made.all(save)
    with crew_at_the_model(tmp_path, 3, 3, k=3) as made:
        assert made.all(resume) == [each[3:] for each in whole]


def test_elastic_training_is_saved_in_after_step(tmp_path: Path) -> None:
    def run(job: SwitchedJob) -> None:
        training = Training(job)
        elastic = SimpleNamespace(elastic=partial(kofn_torch.elastic, job=job))
        names = {"torch": torch, "folder": tmp_path, **vars(training), "kofn_torch": elastic}
        exec(PYTORCH["save in after_step"].replace("100", "2"), names)
        session = names["session"]
        while not session.done():
            training.optimizer.zero_grad()
            loss_of(training.model, job.rank, session.iteration).backward()
            training.optimizer.step()
        session.close()

    with crew_at_the_model(tmp_path, 5, 3, k=2) as made:
        made.all(run)
    saved = sorted(path.name for path in tmp_path.glob("*.pt"))
    assert saved == [f"{iteration}-worker-{rank}.pt" for iteration in (2, 4) for rank in range(3)]
