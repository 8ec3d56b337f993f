"""The blocks of "Save and resume" in the how-tos work as written."""

import subprocess
import sys
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

if find_spec("torch") is None:
    pytest.skip("torch is not installed: kofn/run/setup.sh torch", allow_module_level=True)

import torch

import kofn.torch
from tests.docs.markdown import ROOT, blocks
from tests.torch.crew import SwitchedJob, crew_at_the_model
from tests.torch.test_state import Training, loss_of

PYTORCH, ZERO = (
    {block.note: block.text for block in blocks(ROOT / "docs" / "howto" / f"{page}.md") if block.note}
    for page in ("pytorch", "zero")
)

SHARDED = """
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

import kofn.torch

kind, folder = sys.argv[1:]
dist.init_process_group("gloo")
torch.manual_seed(1)
model = nn.Sequential(nn.Linear(7, 9), nn.Tanh(), nn.Linear(9, 3))
optimizer = kofn.torch.zero(model, lr=0.1, stage=3, bits=32, through="gloo")


def train(steps):
    for step in steps:
        given = torch.randn(5, 7, generator=torch.Generator().manual_seed(10 * step + dist.get_rank()))
        loss = model(given).square().sum()
        loss.backward()
        optimizer.step()
        dist.all_reduce(loss.detach())
        print(step, dist.get_rank(), loss.item(), flush=True)


if kind == "save":
    import torch.distributed.checkpoint as dcp

    train(range(4))
{save}
{export}
else:
{resume}
    if kind == "files":
        optimizer = kofn.torch.zero(model, lr=0.1, stage=3, bits=32, through="gloo")
train(range(4, 8))
"""


def losses(kind: str, workers: int, folder: Path) -> list[str]:
    """Return the sorted lines of a script's workers from step 4 on."""
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nproc-per-node",
        str(workers),
        "--master-port",
        "29517",
    ]
    ended = subprocess.run(
        [*command, str(folder / "train.py"), kind, str(folder / "checkpoint")],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1"},
    )
    assert ended.returncode == 0, ended.stderr[-2000:]
    return sorted(line for line in ended.stdout.splitlines() if line[:1] in "4567")


@pytest.mark.timeout(300)
def test_zero_is_saved_by_four_processes_and_resumed_by_four_and_two(tmp_path: Path) -> None:
    """Through a distributed checkpoint, and into a plain module."""
    indented = {note: "".join(f"    {line}\n" for line in text.splitlines()) for note, text in ZERO.items()}
    script = SHARDED
    for note in ("save", "resume", "export"):
        script = script.replace("{" + note + "}", indented[note])
    (tmp_path / "train.py").write_text(script)
    whole = losses("save", 4, tmp_path)
    assert len(whole) == 16
    assert losses("resume", 4, tmp_path) == whole
    assert len(losses("resume", 2, tmp_path)) == 8
    full = torch.load(tmp_path / "checkpoint" / "model.pt")
    model = torch.nn.Sequential(torch.nn.Linear(7, 9), torch.nn.Tanh(), torch.nn.Linear(9, 3))
    model.load_state_dict(full)
    given = torch.randn(5, 7, generator=torch.Generator().manual_seed(40))
    assert f"4 0 {model(given).square().sum().item()}" in whole


def test_hooks_state_is_saved_and_resumed(tmp_path: Path) -> None:
    def save(job: SwitchedJob) -> list[float]:
        training = Training(job)
        names: dict[str, Any] = {"torch": torch, "folder": tmp_path, **vars(training)}
        names["session"] = kofn.torch.ddp_hook(training.model, job=job)
        found = train(training, range(3))
        exec(PYTORCH["save"], names)
        return found + train(training, range(3, 6))

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
        hook = SimpleNamespace(ddp_hook=partial(kofn.torch.ddp_hook, job=job))
        names = {
            "torch": torch,
            "folder": tmp_path,
            "Path": Path,
            **vars(training),
            "kofn": SimpleNamespace(torch=hook),
        }
        exec(PYTORCH["resume"], names)
        return train(training, range(3, 6))

    with crew_at_the_model(tmp_path, 6, 3, k=3) as made:
        whole = made.all(save)
    with crew_at_the_model(tmp_path, 3, 3, k=3) as made:
        assert made.all(resume) == [each[3:] for each in whole]


def test_elastic_training_is_saved_in_after_step(tmp_path: Path) -> None:
    def run(job: SwitchedJob) -> None:
        training = Training(job)
        elastic = SimpleNamespace(elastic=partial(kofn.torch.elastic, job=job))
        names = {"torch": torch, "folder": tmp_path, **vars(training), "kofn": SimpleNamespace(torch=elastic)}
        exec(PYTORCH["save in after_step"].replace("100", "2"), names)
        session = names["session"]
        while not session.done():
            training.optimizer.zero_grad()
            loss_of(training.model, job.rank, session.iteration).backward()
            training.optimizer.step()

    with crew_at_the_model(tmp_path, 5, 3, k=2) as made:
        made.all(run)
    saved = sorted(path.name for path in tmp_path.glob("*.pt"))
    assert saved == [f"{iteration}-worker-{rank}.pt" for iteration in (2, 4) for rank in range(3)]
