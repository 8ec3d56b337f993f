"""Unsupported models, optimizers and environments give a clear error, and never a training that hangs."""

import re
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

if find_spec("torch") is None:
    pytest.skip("torch is not installed: kofn/run/setup.sh torch", allow_module_level=True)

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

import kofn_torch
from kofn_common.config.schema import Config
from kofn_common.wire.packet import PORT
from kofn_host.errors import AgentError, GradientError, HostError
from kofn_host.transport.udp import udp_socket
from kofn_host.worker import JobPlace
from kofn_torch.attach import ddp_hook
from kofn_torch.job import ControlledJob
from kofn_torch.layout import ParameterLayout
from kofn_torch.session import BACKLOG
from tests.host.worker.test_job_place import ENVIRONMENT
from tests.pytorch.crew import Crew, SwitchedJob, crew, ddp, gloo_group, group_of_one
from tests.system.collectives.switched import HOSTS

pytestmark = pytest.mark.torch

SEED = torch.ones(4, 8)


@pytest.fixture
def alone(tmp_path: Path) -> SwitchedJob:
    """Return a job that no other worker joins."""
    config = Config.of({"job": {"workers": HOSTS}})
    place: Any = None
    peers: Any = None
    return SwitchedJob(config, 0, tmp_path / "worker-0.jsonl", place, peers, 1.0)


def line() -> nn.Module:
    return nn.Linear(8, 8)


# -- models


@pytest.mark.parametrize(
    ("module", "words"),
    [
        (lambda: nn.Linear(2, 2, dtype=torch.float64), "weight must be one of float32, float16, bfloat16, got float64"),
        (
            lambda: nn.Linear(2, 2, dtype=torch.complex64),
            "weight must be one of float32, float16, bfloat16, got complex64",
        ),
        (
            lambda: nn.Linear(2, 2, device="meta"),
            "weight must be on the cpu or an accelerator that PyTorch finds, got meta",
        ),
        (lambda: nn.Sequential(nn.Embedding(9, 2, sparse=True)), "0 must have sparse=False, got sparse gradients"),
        (lambda: nn.Linear(2, 2).requires_grad_(False), "the model must have at least one parameter that is trained"),
    ],
)
def test_models_that_cannot_be_summed_are_refused(module: Callable[[], nn.Module], words: str) -> None:
    with pytest.raises(kofn_torch.TorchError, match=words):
        ParameterLayout(module())


def test_model_without_ddp_or_with_a_hook_is_refused(alone: SwitchedJob) -> None:
    plain: Any = line()
    with pytest.raises(kofn_torch.TorchError, match="the model must be a DistributedDataParallel, got a Linear"):
        ddp_hook(plain, job=alone)
    model = ddp(line)
    model.register_comm_hook(None, allreduce_hook)
    with pytest.raises(kofn_torch.TorchError, match="must have no communication hook yet"):
        ddp_hook(model, job=alone)


def test_world_of_another_size_is_refused(alone: SwitchedJob) -> None:
    store = dist.HashStore()

    def train(rank: int) -> str:
        model = ddp(line, process_group=gloo_group(store, rank, 2))
        with pytest.raises(kofn_torch.TorchError) as caught:
            ddp_hook(model, job=alone)
        return str(caught.value)

    with ThreadPoolExecutor(2) as pool:
        assert all(words.startswith("WORLD_SIZE must be job.workers (3), or 1 ") for words in pool.map(train, range(2)))


def test_second_hook_is_refused(tmp_path: Path) -> None:
    def run(job: SwitchedJob) -> None:
        model = ddp(line)
        with closing(kofn_torch.ddp_hook(model, job=job)):
            with pytest.raises(kofn_torch.TorchError, match="must have no communication hook yet"):
                kofn_torch.ddp_hook(model, job=job)
            with pytest.raises(kofn_torch.TorchError, match="must have no communication hook yet"):
                by_elastic(model, job=job)
            model(SEED).sum().backward()  # the first hook still works

    with crew(tmp_path, 1) as made:
        made.all(run)


def delayed() -> Any:
    module = nn.Sequential(line(), line())
    named = [("0.weight", module[0].weight)]
    group_of_one()
    first = module[1].weight
    return DistributedDataParallel(module, delay_all_reduce_named_params=named, param_to_hook_all_reduce=first)


def reduced_in_python() -> Any:
    with torch._dynamo.config.patch(optimize_ddp="python_reducer"):
        return ddp(line)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (delayed, "delay_all_reduce_named_params must not be given"),
        (reduced_in_python, 'optimize_ddp must be True or False, got "python_reducer"'),
    ],
)
def test_gradients_without_a_hook_are_refused(make: Callable[[], Any], words: str, alone: SwitchedJob) -> None:
    with pytest.raises(kofn_torch.TorchError, match=words):
        ddp_hook(make(), job=alone)


def test_unused_parameters_need_all_workers_in_one_group(alone: SwitchedJob) -> None:
    with pytest.raises(kofn_torch.TorchError, match="find_unused_parameters=True, which needs all workers"):
        ddp_hook(ddp(line, find_unused_parameters=True), job=alone)


@pytest.mark.parametrize(
    ("options", "optimizer", "scheduler", "words"),
    [
        ({"find_unused_parameters": True}, torch.optim.SGD, None, "find_unused_parameters=True"),
        ({}, torch.optim.LBFGS, None, "got LBFGS, which needs several gradients a step"),
        ({}, torch.optim.SGD, torch.optim.lr_scheduler.ReduceLROnPlateau, "got ReduceLROnPlateau, which needs each"),
    ],
)
def test_unsupported_elastic_training_is_refused(
    alone: SwitchedJob, options: dict[str, Any], optimizer: Any, scheduler: Any, words: str
) -> None:
    model = ddp(line, **options)
    made = optimizer(model.parameters(), lr=0.1)
    with pytest.raises(kofn_torch.TorchError, match=words):
        kofn_torch.elastic(model, made, scheduler and scheduler(made), job=alone)


@pytest.mark.parametrize(
    ("optimizer", "scheduler", "words"),
    [
        (lambda model: None, None, "the optimizer must be a torch.optim.Optimizer, got a NoneType"),
        (lambda model: torch.optim.SGD(model.parameters()), "cosine", "the scheduler must be one of torch.optim.lr_"),
    ],
)
def test_objects_that_are_no_optimizer_or_scheduler_are_refused(
    alone: SwitchedJob, optimizer: Any, scheduler: Any, words: str
) -> None:
    model: Any = line()
    for train, given in ((kofn_torch.elastic, ddp(line)), (kofn_torch.schedule, model)):
        with pytest.raises(kofn_torch.TorchError, match=words):
            train(given, optimizer(given), scheduler, job=alone)
    with pytest.raises(kofn_torch.TorchError, match=r"the model must be a torch\.nn\.Module, got a list"):
        kofn_torch.schedule([model], optimizer(model), job=alone)


# -- environments


def test_missing_variable_is_an_error_of_kofn_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ENVIRONMENT:
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(kofn_torch.TorchError, match=r"KOFN_RANK must be .*, got nothing"):
        ddp_hook(ddp(line))


@pytest.fixture
def controlled(tmp_path: Path) -> ControlledJob:
    (tmp_path / "job.toml").write_text("[job]\nworkers = 3\n")
    given = {"KOFN_CONFIG": "job.toml", "KOFN_METRICS": "worker-1.jsonl"}
    where = {"KOFN_SERVICE": "127.0.0.1", "KOFN_INTERFACE": "lo"}
    return ControlledJob(
        JobPlace.find((1, 3), {**ENVIRONMENT, **where, **{name: str(tmp_path / file) for name, file in given.items()}})
    )


def test_objective_of_a_trial_is_that_of_the_environment(tmp_path: Path) -> None:
    (tmp_path / "job.toml").write_text('[policy]\nobjective = "throughput"\n')
    given = {**ENVIRONMENT, "KOFN_CONFIG": str(tmp_path / "job.toml"), "KOFN_OBJECTIVE": "fixed:2"}
    assert ControlledJob(JobPlace.find((1, 4), given)).config.policy.objective == "fixed:2"
    assert ControlledJob(JobPlace.find((1, 4), {**given, "KOFN_OBJECTIVE": ""})).config.policy.objective == "throughput"


def by_elastic(model: DistributedDataParallel, *, job: SwitchedJob) -> kofn_torch.Session:
    return kofn_torch.elastic(model, torch.optim.SGD(model.parameters(), lr=0.1), job=job)


@pytest.mark.parametrize(
    ("objective", "attach", "iterations", "warns"),
    [
        ("fixed:2", ddp_hook, 65, True),
        ("async:1", ddp_hook, 65, True),
        ("fixed:2", ddp_hook, 64, False),
        ("fixed:3", ddp_hook, 65, False),
        ("progress", ddp_hook, 65, False),
        ("fixed:2", by_elastic, 65, False),
    ],
)
def test_fixed_k_without_elastic_is_a_warning(
    objective: str,
    attach: Callable[..., kofn_torch.Session],
    iterations: int,
    warns: bool,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def train(job: SwitchedJob) -> None:
        job.config = Config.of(
            {
                "job": {"workers": HOSTS},
                "policy": {"objective": objective},
                "run": {"max_iterations": iterations},
            }
        )
        attach(ddp(line), job=job).close()

    with crew(tmp_path, 1) as made:
        made.all(train)
    warned = [each.getMessage() for each in caplog.records if "without kofn_torch.elastic()" in each.getMessage()]
    assert len(warned) == (HOSTS if warns else 0)


def test_worker_too_far_behind_is_named_in_every_later_call(tmp_path: Path) -> None:
    """Its means of 64 iterations are used up, so it must not go on."""
    others = threading.Barrier(HOSTS)

    def train(job: SwitchedJob) -> None:
        model = ddp(line)
        session = ddp_hook(model, job=job)
        for _ in range(1 if job.rank == 0 else BACKLOG + 2):
            if job.rank == 0:
                others.wait(30)
            model(torch.ones(1, 8)).sum().backward()
        if job.rank:
            others.wait(30)
            return
        for _ in range(2):
            with pytest.raises(kofn_torch.TorchError, match="worker 0 must be at most 64 iterations behind the others"):
                model(torch.ones(1, 8))
        with suppress(kofn_torch.TorchError):
            session.close()

    with crew(tmp_path, BACKLOG + 10, k=2) as made:
        made.all(train)


def test_second_model_in_a_process_is_refused(controlled: ControlledJob, tmp_path: Path) -> None:
    with closing(udp_socket("", PORT, "lo")), pytest.raises(kofn_torch.TorchError) as caught:
        ddp_hook(ddp(line), job=controlled)
    assert str(caught.value).startswith("worker 1 must train one model in one process, got no connection to 127.0.0.1")
    assert [path.name for path in tmp_path.iterdir()] == ["job.toml"], "no ledger may be left"


def test_packets_leave_by_the_interface_of_the_environment(
    controlled: ControlledJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    def made(service: str, **given: Any) -> None:
        raise OSError(f"to {service} by {given['interface']}")

    monkeypatch.setattr("kofn_host.worker.run.Transport", made)
    with pytest.raises(kofn_torch.TorchError, match=r"to 127\.0\.0\.1 by lo"):
        ddp_hook(ddp(line), job=controlled)


# -- during training


def errors(made: Crew, train: Callable[[SwitchedJob, Any], object], limit_s: float = 12.0) -> list[str]:
    """Return the error that ends each worker's session; every later call raises it again."""

    def run(job: SwitchedJob) -> str:
        model = ddp(line)
        begun_s = time.monotonic()
        with suppress(RuntimeError), pytest.raises(HostError):  # DDP's form of the error, without its type
            train(job, model)
        with pytest.raises(HostError) as caught:
            model(SEED)
        assert time.monotonic() - begun_s < limit_s
        return f"{type(caught.value).__name__}: {caught.value}"

    return made.all(run)


def missing(error: str) -> set[str]:
    """Return the ranks that were missing when a worker gave up; on a busy machine other ranks may be late, too."""
    found = re.search(r"workers? (.*) missing", error)
    return set(found[1].split(" and ")) if found else set()


def test_non_finite_gradient_is_refused(tmp_path: Path) -> None:
    def train(job: SwitchedJob, model: Any) -> None:
        kofn_torch.ddp_hook(model, job=job)
        model(SEED * (float("nan") if job.rank == 1 else 1)).sum().backward()

    with crew(tmp_path, 3, give_up_s=2.0) as made:
        found = errors(made, train)
    assert found[1].startswith("GradientError: ")
    assert "must be finite and at most 2**20 in magnitude, got nan" in found[1]
    assert all(error.startswith("AgentError: iteration") and "1" in missing(error) for error in (found[0], found[2]))


@pytest.mark.parametrize("value", [float("nan"), 3e6])
def test_gradient_out_of_range_is_named_where_it_is_computed(value: float, tmp_path: Path) -> None:
    """The backward pass raises it with its own type."""

    def run(job: SwitchedJob) -> list[str]:
        model = ddp(line)
        kofn_torch.ddp_hook(model, job=job)
        with pytest.raises(GradientError) as caught:
            model(SEED * value).sum().backward()
        return caught.value.__notes__

    with crew(tmp_path, 3) as made:
        for (note,) in made.all(run):
            assert note.startswith("parameter weight: a smaller loss") or note.startswith("parameter bias, weight: ")


def test_worker_that_contributes_nothing_is_named(tmp_path: Path) -> None:
    def run(job: SwitchedJob) -> str:
        model = ddp(line)
        kofn_torch.ddp_hook(model, job=job)
        if job.rank == 2:
            return ""
        with pytest.raises(RuntimeError, match="iteration"):
            model(SEED).sum().backward()
        with pytest.raises(AgentError) as caught:
            model(SEED)
        return str(caught.value)

    with crew(tmp_path, 3, give_up_s=2.0) as made:
        assert all("2" in missing(error) for error in made.all(run)[:2])


def _transposed() -> nn.Module:
    """Return a layer with the same values in another memory order, in which DDP's buckets would have them."""
    made = nn.Linear(8, 8)
    made.weight = nn.Parameter(made.weight.detach().t().contiguous().t())
    return made


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (lambda: nn.Sequential(nn.Linear(8, 4), nn.Linear(4, 7)), "got another model of 71"),
        (_transposed, "got another model of 72"),
        (lambda: nn.Linear(8, 8).apply(nn.init.ones_), "began with other parameters"),
    ],
)
def test_another_model_at_one_worker_is_an_error(other: Any, words: str, tmp_path: Path) -> None:
    def ones(module: nn.Module) -> None:
        if isinstance(module, nn.Linear):
            nn.init.ones_(module.weight)

    def run(job: SwitchedJob) -> str:
        makes = other if "model" in words else lambda: nn.Linear(8, 8).apply(ones)
        model = ddp(makes if job.rank == 1 else line)
        kofn_torch.ddp_hook(model, job=job)
        with suppress(RuntimeError):
            model(SEED).sum().backward()
        with pytest.raises(kofn_torch.TorchError) as caught:
            model(SEED)
        return str(caught.value)

    with crew(tmp_path, 3) as made:
        found = made.all(run)
    assert all(words in each for each in (found[0], found[2]))


def unscale(optimizer: torch.optim.Optimizer) -> None:
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(torch.ones(1))
    scaler.unscale_(optimizer)


@pytest.mark.parametrize(
    ("between", "words"),
    [
        (lambda model, scheduler: nn.utils.clip_grad_norm_(model.parameters(), 1e-6), "by clipping or a GradScaler"),
        (lambda model, scheduler: unscale(scheduler.optimizer), "by clipping or a GradScaler"),
        (lambda model, scheduler: scheduler.step(), "the scheduler must not be stepped"),
        (
            lambda model, scheduler: scheduler.optimizer.param_groups[0].update(lr=0.2),
            "lr of the optimizer was changed",
        ),
        (
            lambda model, scheduler: scheduler.optimizer.param_groups[0].update(momentum=0.2),
            "momentum of the optimizer",
        ),
    ],
)
def test_calls_that_would_part_the_replicas_are_refused(
    between: Callable[..., Any], words: str, tmp_path: Path
) -> None:
    def run(job: SwitchedJob) -> None:
        model = ddp(line)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
        session: Any = kofn_torch.elastic(model, optimizer, scheduler, job=job)
        for _ in range(2):
            optimizer.zero_grad()
            model(SEED).sum().backward()
            if scheduler.last_epoch == 0:
                optimizer.step()
        between(model, scheduler)
        with pytest.raises(kofn_torch.TorchError, match=words):
            optimizer.step()
            session._staging.close()  # a device that is not waited for shows a GradScaler's change later
            model(SEED)

    with crew(tmp_path, 3) as made:
        made.all(run)


class Counting(nn.Linear):
    """Counts its own forward passes."""

    def __init__(self) -> None:
        super().__init__(8, 8)
        self.register_buffer("passes", torch.tensor(0))

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        self.passes += 1
        return super().forward(values)


def test_steps_without_gradients_and_changed_buffers_are_refused(tmp_path: Path) -> None:
    def run(job: SwitchedJob) -> None:
        model = ddp(Counting)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        kofn_torch.elastic(model, optimizer, job=job)
        with pytest.raises(kofn_torch.TorchError, match="must come before step\\(\\), outside of no_sync"):
            optimizer.step()
        with pytest.raises(kofn_torch.TorchError, match="must have no closure"):
            optimizer.step(lambda: 0.0)
        model(SEED).sum().backward()
        with pytest.raises(kofn_torch.TorchError, match="passes must not change while a gradient is computed"):
            optimizer.step()
        with pytest.raises(kofn_torch.TorchError, match="join\\(\\) must not be used"), model.join():
            model(SEED)

    with crew(tmp_path, 3) as made:
        made.all(run)


def of_the_module(model: Any) -> None:
    """Train with the loss of model.module."""
    for _ in range(2):
        model.module(SEED).sum().backward()


def converted(model: Any) -> None:
    """Train after a conversion: DDP's hooks are on parameters of the earlier dtype."""
    model.double().float()
    for _ in range(2):
        model(SEED).sum().backward()


def several_forward_passes(model: Any) -> None:
    outputs = [model(SEED), model(SEED)]
    for each in outputs:
        each.sum().backward()


@pytest.mark.parametrize("train", [of_the_module, converted, several_forward_passes])
@pytest.mark.parametrize("before", [0, 2])
def test_gradients_that_ddp_does_not_reduce_are_refused(
    train: Callable[[Any], None], before: int, tmp_path: Path
) -> None:
    """PyTorch reports nothing, and the replicas part."""

    def run(job: SwitchedJob) -> None:
        model = ddp(line)
        kofn_torch.ddp_hook(model, job=job)
        for _ in range(before):
            model(SEED).sum().backward()
        with pytest.raises(kofn_torch.TorchError, match=r"stays? with this worker: DDP reduces one backward pass"):
            train(model)

    with crew(tmp_path, before + 2) as made:
        made.all(run)


def test_penalty_of_the_parameters_may_have_its_own_pass(tmp_path: Path) -> None:
    def run(job: SwitchedJob) -> float:
        model = ddp(lambda: nn.Linear(8, 8, bias=False))
        with closing(kofn_torch.ddp_hook(model, job=job)):
            for step in range(2):
                model.zero_grad(set_to_none=step == 0)
                model(SEED).sum().backward()
                model.module.weight.sum().backward()
        return float(model.module.weight.grad[0, 0])

    with crew(tmp_path, 2) as made:
        assert made.all(run) == [5.0] * HOSTS


def test_static_graph_that_begins_in_no_sync_is_refused(tmp_path: Path) -> None:
    def run(job: SwitchedJob) -> None:
        model = ddp(line, static_graph=True)
        kofn_torch.ddp_hook(model, job=job)
        with pytest.raises(kofn_torch.TorchError, match="the first backward pass must be outside"), model.no_sync():
            model(SEED)
        model(SEED).sum().backward()
        with model.no_sync():
            model(SEED).sum().backward()

    with crew(tmp_path, 1) as made:
        made.all(run)


def unfrozen(model: Any) -> None:
    model.module[0].requires_grad_(True)


def replaced(model: Any) -> None:
    model.load_state_dict({name: each + 1 for name, each in model.state_dict().items()}, assign=True)


def frozen(model: Any) -> None:
    model.module[1].requires_grad_(False)


@pytest.mark.parametrize(
    ("change", "words"),
    [(unfrozen, "0.weight is trained, but was"), (replaced, "1.weight is trained, but was"), (frozen, "1.weight was")],
)
@pytest.mark.parametrize("attach", ["ddp_hook", "elastic"])
def test_later_change_of_the_trained_parameters_is_refused(
    attach: str, change: Callable[[Any], None], words: str, tmp_path: Path
) -> None:
    def run(job: SwitchedJob) -> None:
        model = ddp(lambda: nn.Sequential(line().requires_grad_(False), line()))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        getattr(kofn_torch, attach)(*(model, optimizer)[: 1 + (attach == "elastic")], job=job)
        model(SEED).sum().backward()
        optimizer.step()
        change(model)
        with pytest.raises(kofn_torch.TorchError, match=words):
            model(SEED)
        with torch.no_grad():
            model(SEED)

    with crew(tmp_path, 2) as made:
        made.all(run)


def test_more_iterations_than_the_job_has_are_refused(tmp_path: Path) -> None:
    def train(job: SwitchedJob, model: Any) -> None:
        session = kofn_torch.ddp_hook(model, job=job)
        for _ in range(2):
            model(SEED).sum().backward()
        assert session.done()

    with crew(tmp_path, 1) as made:
        assert all("iteration must be at most" in words for words in errors(made, train))
