"""States of sessions: saved by a script, and loaded by the same or another number of workers."""

import io
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest

if find_spec("torch") is None:
    pytest.skip("torch is not installed: kofn/run/setup.sh torch", allow_module_level=True)

import torch
import torch.distributed.checkpoint as dcp
from torch import nn

import kofn_torch
from kofn_host.compression.ledger_native import checksums
from kofn_host.compression.ledger_state import LedgerState
from kofn_host.compression.ledger_storage import RECORD
from kofn_host.compression.residual import Residual
from kofn_host.errors import LedgerError
from kofn_torch.checkpoint import LoadPlanner
from kofn_torch.errors import TorchError
from kofn_torch.state import State
from tests.pytorch.crew import SwitchedJob, crew, crew_at_the_model, ddp, parameters_of
from tests.pytorch.test_hook import layers
from tests.pytorch.test_schedule import scheduled

pytestmark = pytest.mark.torch

T = TypeVar("T")


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
    """A worker's model, optimizer and losses, from the start or from a checkpoint of its script."""

    def __init__(self, job: SwitchedJob, start: State | None = None) -> None:
        self.job, self.start = job, start
        self.model = ddp(layers, bucket_cap_mb=0.01)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05, momentum=0.9)
        self.losses, self.saved = dict[int, float](), dict[int, State]()
        self.results_then = dict[int, Any]()
        if start is not None:
            self.model.load_state_dict(start["model"])
            self.optimizer.load_state_dict(start["optimizer"])

    def run(
        self, kind: str, begin: int, states: Sequence[State] = (), every: int = 0, *, copies: bool = True
    ) -> "Training":
        """Train to the job's last iteration, the data from step `begin` on; save in multiples of `every`."""
        if kind == "elastic":
            session: Any = kofn_torch.elastic(
                self.model, self.optimizer, after_step=lambda: self.save(session, every), job=self.job
            )
        elif kind == "schedule":
            session = kofn_torch.schedule(self.model.module, self.optimizer, job=self.job)
        else:
            session = kofn_torch.ddp_hook(self.model, job=self.job)
        self.loaded: Any = None
        with closing(session):
            session.save_every = every
            if states:
                session.load_state_dict(*states)
                self.loaded = session.reducer.totals()
            for step in count(begin):
                if session.iteration >= session.iterations:
                    break
                loss = loss_of(session.model.module if kind == "schedule" else self.model, self.job.rank, step)
                self.losses[step] = loss.item()
                if kind == "schedule":
                    session.backward(loss)
                else:
                    self.optimizer.zero_grad()
                    time.sleep(0.03 if self.slow else 0)
                    loss.backward()
                    self.optimizer.step()
                if kind != "elastic":
                    session._end_iteration()
                    self.save(session, every)
        self.parameters = parameters_of(self.model)
        self.totals, self.results = session.reducer.totals(), session.replica.results
        return self

    @property
    def slow(self) -> bool:
        """Whether this worker is late in every iteration, where k < n."""
        return self.job.rank == 1

    def save(self, session: Any, every: int) -> None:
        if every and session.iteration % every == 0:
            parts = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
            self.saved[session.iteration] = stored(parts | {"kofn": session.state_dict()})
            self.results_then[session.iteration] = session.replica.results.copy()


KINDS = ("hook", "elastic", "schedule")


@pytest.mark.parametrize("kind", KINDS)
def test_training_goes_on_to_the_bit(kind: str, tmp_path: Path) -> None:
    """With k = n. Nine iterations follow the checkpoint, which the uninterrupted training makes itself."""
    with crew(tmp_path, 19) as made:
        scheduled(made, **({"family": "priority"} if kind == "schedule" else {}))
        whole = made.all(lambda job: Training(job).run(kind, 0, every=10))
    at = max(iteration for each in whole for iteration in each.saved)
    done = at - made.first + 1
    saved = [each.saved[at] for each in whole]
    states = [each["kofn"] for each in saved]
    assert all(
        any(each.any() for each in state[f"worker-{rank}"]["pending"].values()) for rank, state in enumerate(states)
    )
    with crew(tmp_path, 19 - done) as made:
        scheduled(made, **({"family": "priority"} if kind == "schedule" else {}))
        rest = made.all(lambda job: Training(job, saved[job.rank]).run(kind, done, states))
    for one, other in zip(whole, rest, strict=True):
        assert [*other.losses] == [*range(done, 19)]
        assert other.losses == {step: loss for step, loss in one.losses.items() if step >= done}
        assert other.parameters == one.parameters


@pytest.mark.parametrize("workers", [2, pytest.param(3, marks=pytest.mark.long), 4])
def test_pending_gradients_are_conserved_over_both_legs(
    workers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the fastest two of three, then with another number of workers."""
    accounts = dict[bytes, Any]()
    pending = LedgerState.pending

    def spied(state: LedgerState, copy: Any) -> Any:
        found = pending(state, copy)
        accounts[checksums(found[0]).tobytes()] = copy["records"].view(RECORD)[:, 0]
        return found

    monkeypatch.setattr(LedgerState, "pending", spied)
    with crew_at_the_model(tmp_path, 20, 3, k=2) as made:
        first = made.all(lambda job: Training(job).run("elastic", 0, every=10))
        blocks = made.jobs[0].agent.ledger.residual
    saved = [each.saved[10] for each in first]
    states = [each["kofn"] for each in saved]
    own = [ledger_values(state[f"worker-{rank}"]["pending"], blocks) for rank, state in enumerate(states)]
    records = [accounts[checksums(each).tobytes()] for each in own]
    for each, values in zip(records, own, strict=True):
        assert np.array_equal(each["gradients"], each["aggregated"] + checksums(values) + each["discarded"])
    assert np.array_equal(sum(each["aggregated"] for each in records), first[0].results_then[10]), "in the saved model"
    assert any("weights" in state[f"worker-{rank}"] for rank, state in enumerate(states)), "late"

    with crew_at_the_model(tmp_path, 10, workers, k=workers - 1) as made:
        rest = made.all(lambda job: Training(job, stored(saved[0])).run("elastic", 10, states))
    given = [sum(checksums(values) for values in own[rank::workers]) for rank in range(workers)]
    for rank, each in enumerate(rest):
        assert np.array_equal(each.loaded.gradients, given[rank] + np.zeros(blocks.blocks, np.int64))
        assert each.totals.conserved
    assert np.array_equal(sum(each.totals.aggregated for each in rest), rest[0].results)
    assert len({each.parameters for each in rest}) == 1


def ledger_values(pending: dict[str, torch.Tensor], residual: Residual) -> Any:
    """Return a state's pending values in the blocks of a ledger."""
    flat = torch.cat([each.reshape(-1) for each in pending.values()]).numpy()
    return np.pad(flat, (0, residual.blocks * residual.elements - flat.size)).reshape(residual.blocks, -1)


def fresh(folder: Path, work: Callable[[SwitchedJob, Any], T], workers: int = 2) -> list[T]:
    """Return what the work finds with each worker's new session, in a job of one iteration."""

    def run(job: SwitchedJob) -> T:
        with closing(kofn_torch.ddp_hook(ddp(layers), job=job)) as session:
            return work(job, session)

    with crew_at_the_model(folder, 1, workers, k=workers) as made:
        return made.all(run)


def three_states(folder: Path) -> list[State]:
    with crew_at_the_model(folder, 4, 3, k=3) as made:
        return [each.saved[4]["kofn"] for each in made.all(lambda job: Training(job).run("hook", 0, every=4))]


@pytest.mark.filterwarnings("ignore")  # PyTorch warns about itself
@pytest.mark.parametrize("workers", [2, 4])
def test_distributed_checkpoint_is_read_by_another_number_of_workers(workers: int, tmp_path: Path) -> None:
    states, folder = three_states(tmp_path), tmp_path / "checkpoint"
    dcp.save({"kofn": {name: each for state in states for name, each in state.items()}}, checkpoint_id=folder)

    def load(job: SwitchedJob, session: Any) -> State:
        dcp.load({"kofn": session}, checkpoint_id=folder, planner=LoadPlanner(session), no_dist=True)
        return session.state_dict()[f"worker-{job.rank}"]["pending"]

    for rank, found in enumerate(fresh(tmp_path, load, workers)):
        for name, each in found.items():
            given = [state[f"worker-{other}"]["pending"][name] for other, state in enumerate(states)][rank::workers]
            assert torch.equal(each, sum(given, torch.zeros_like(each)))


def test_states_of_other_trainings_are_refused_and_change_nothing(tmp_path: Path) -> None:
    states = three_states(tmp_path)

    def changed(change: Callable[[dict[str, torch.Tensor]], object]) -> list[State]:
        found = [stored(state) for state in states]
        for rank, state in enumerate(found):
            change(state[f"worker-{rank}"]["pending"])
        return found

    cases: list[tuple[Sequence[Any], str]] = [
        (changed(lambda own: own.update({"4.bias": torch.ones(3)})), r"4.bias must have the shape \[10\], got \[3\]"),
        (changed(lambda own: own.pop("0.weight")), r"0.weight must have the shape \[128, 64\], got no such parameter"),
        (
            changed(lambda own: own.update(other=own["0.bias"])),
            "other must have the shape no such parameter",
        ),
        (states[1:2], r"must be given the states of workers \[.*\] of 3, got none of"),
        ([states[0], states[1] | {"iteration": 3}], "must be of one iteration and one number of workers"),
        ([torch.ones(1)], "must be that of a session, as its state_dict.* returns it, got Tensor"),
    ]

    def load(job: SwitchedJob, session: Any) -> None:
        for given, words in cases[: 3 if job.rank else None]:
            with pytest.raises(TorchError, match=words):
                session.load_state_dict(*given)
        assert not any(each.any() for each in session.state_dict()[f"worker-{job.rank}"]["pending"].values())
        session.load_state_dict(*states)
        with pytest.raises(LedgerError, match="a ledger must have no gradients to take over others'"):
            session.load_state_dict(*states)

    fresh(tmp_path, load)


def test_state_is_loaded_before_training_and_saved_after_a_step(tmp_path: Path) -> None:
    def train(job: SwitchedJob) -> None:
        training = Training(job)
        with closing(kofn_torch.elastic(training.model, training.optimizer, job=job)) as session:
            state = session.state_dict()
            loss_of(training.model, job.rank, 0).backward()
            with pytest.raises(TorchError, match="must come after step"):
                session.state_dict()
            with pytest.raises(TorchError, match="must come before the first backward pass"):
                session.load_state_dict(state)
            training.optimizer.step()

    with crew_at_the_model(tmp_path, 1, 1, k=1) as made:
        made.all(train)


def test_worker_that_rejoins_keeps_its_own_ledger(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    states = three_states(tmp_path)

    def load(job: SwitchedJob, session: Any) -> None:
        session.replica.rejoined = True
        session.load_state_dict(*states)
        assert not session.reducer.totals().gradients.any()

    fresh(tmp_path, load)
    assert "goes on from a peer's state and ignores the older state to load" in caplog.text


def test_state_that_is_gone_names_save_every(tmp_path: Path) -> None:
    """The other two have gone on by the time at which the slow worker saves."""

    class Late(Training):
        def save(self, session: Any, every: int) -> None:
            session.save_every = 0
            while self.slow and session.reducer.ledger.state.settled <= session.iteration == 4:
                time.sleep(0.01)
            super().save(session, every)

    def train(job: SwitchedJob) -> str:
        try:
            Late(job).run("elastic", 0, every=12 if job.rank != 1 else 4)
        except TorchError as error:
            return str(error)
        return ""

    with crew_at_the_model(tmp_path, 12, 3, k=2) as made:
        first, slow, last = made.all(train)
    assert first == last == ""
    assert "must divide iteration 4, got 0: later sums already have some of the gradients" in slow


def test_one_worker_that_loads_nothing_is_named(tmp_path: Path) -> None:
    states = three_states(tmp_path)

    def train(job: SwitchedJob, session: Any) -> None:
        if job.rank:
            session.load_state_dict(*states)
        loss_of(session.model, job.rank, 0).backward()
        with pytest.raises(TorchError, match="load a state at all workers or at none"):
            session.ended()

    fresh(tmp_path, train)
