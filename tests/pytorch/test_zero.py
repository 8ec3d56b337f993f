"""Sharded optimizers against PyTorch's own over the same sums, and in few bits by the slots' rules."""

import math
import re
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest

if find_spec("torch") is None:
    pytest.skip("torch is not installed: kofn/run/setup.sh torch", allow_module_level=True)

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.testing._internal.distributed.multi_threaded_pg import _install_threaded_pg, _uninstall_threaded_pg

with warnings.catch_warnings(action="ignore"):  # PyTorch warns about itself
    from torch.distributed.optim import ZeroRedundancyOptimizer

import kofn_torch
from kofn.experiments.cells import cells_of
from kofn.experiments.experiment_file import HOOKS, ExperimentFile
from kofn_common.config import compress as compression
from kofn_common.config.job import JobSection
from kofn_common.config.schema import Config
from kofn_common.results.memory import Memory
from kofn_host.collectives import Array, BlockRows, Communicator, InNetwork
from kofn_host.errors import GradientError, HostError
from kofn_host.zero import CODECS, CommunicatorCalls, CompressedMean, ExactCalls, SwitchMean, ZeroSettings
from kofn_torch.errors import place_errors
from kofn_torch.zero_job import GroupZero, ZeroJob, elastic_calls
from tests.experiments.given import EXAMPLES, GivenResults
from tests.pytorch import devices
from tests.pytorch.crew import gloo_group
from tests.system.collectives.crews import threads
from tests.system.collectives.switched import MODEL as SLOTS
from tests.system.zero.crews import all_of, beneath_a_switch

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]  # PyTorch warns about itself

T = TypeVar("T")

WORKERS, STEPS = 3, 20


@dataclass
class Job:
    """A ZeroJob of an existing communicator."""

    communicator: Communicator
    shared: list[bytes] = field(default_factory=list)

    def connect(self, units: Sequence[int], settings: ZeroSettings) -> tuple[ExactCalls, CompressedMean | None]:
        if settings.bits == 32:
            return CommunicatorCalls(self.communicator), None
        assert isinstance(self.communicator, InNetwork)
        return CommunicatorCalls(self.communicator), SwitchMean(self.communicator, sum(units))

    def stepped(self, shared: Array, kept: Memory) -> None:
        self.shared.append(shared.tobytes())


class Residual(nn.Module):
    """A model with parameters beside its children's, an in-place activation, and a layer that is used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.twice, self.norm = nn.Linear(8, 16), nn.Linear(16, 16), nn.LayerNorm(16)
        self.scale, self.last = nn.Parameter(torch.ones(16)), nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu_(self.first(x))
        x = x + torch.tanh(self.twice(torch.tanh(self.twice(x))))
        return self.last(self.norm(x) * self.scale)


torch.manual_seed(1)
MODEL = Residual()
ELEMENTS = sum(each.numel() for each in MODEL.parameters())


def loss_of(model: nn.Module, rank: int, step: int) -> torch.Tensor:
    given = torch.from_numpy(np.random.default_rng([rank, step]).normal(size=(2, 4, 8)).astype(np.float32))
    return (model(given[0]) - given[1, :, :4]).square().mean()


def flat(parameters: Any) -> torch.Tensor:
    return torch.cat([each.detach().reshape(-1).cpu() for each in parameters])


def trained(job: ZeroJob, rank: int, steps: int = STEPS, **given: Any) -> tuple[torch.Tensor, Any]:
    """Return the parameters and the optimizer after training."""
    model = devices.placed(deepcopy(MODEL))
    optimizer = kofn_torch.zero(model, lr=0.01, job=job, **given)
    for step in range(steps):
        loss_of(model, rank, step).backward()
        optimizer.step()
    with optimizer.whole_parameters():
        return flat(model.parameters()), optimizer


@pytest.fixture
def _threads() -> Iterator[None]:
    """Make each rank a thread with its own process groups."""
    torch._C._distributed_c10d._set_thread_isolation_mode(True)
    _install_threaded_pg()
    yield
    _uninstall_threaded_pg()
    torch._C._distributed_c10d._set_thread_isolation_mode(False)


@pytest.mark.usefixtures("_threads")
@pytest.mark.parametrize(
    ("kind", "stage"),
    [
        ("ring", 1),
        ("ring", 3),
        *(pytest.param(*each, marks=pytest.mark.long) for each in (("ring", 2), (SLOTS, 1), (SLOTS, 3))),
    ],
)
def test_32_bits_equal_pytorchs_own_sharded_optimizers(kind: str, stage: int) -> None:
    """Compared are ZeroRedundancyOptimizer's and fully_shard's parameters; the sums are a ring's, or a switch's."""

    def of_pytorch(rank: int) -> torch.Tensor:
        model = deepcopy(MODEL)
        if stage == 3:
            mesh = init_device_mesh("cpu", (WORKERS,))
            for layer in (model.first, model.twice, model.norm, model.last, model):
                fully_shard(layer, mesh=mesh)
            called: nn.Module = model
            optimizer: Any = torch.optim.Adam(model.parameters(), lr=0.01)
        else:
            called = DistributedDataParallel(model)
            optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=0.01)
        for step in range(STEPS):
            optimizer.zero_grad()
            loss_of(called, rank, step).backward()
            optimizer.step()
        return flat(each.full_tensor() if stage == 3 else each for each in model.parameters())

    with threads(kind, WORKERS) as crew:
        store = dist.HashStore()

        def one(communicator: Communicator) -> tuple[torch.Tensor, torch.Tensor]:
            kofn_torch.use(communicator)
            dist.init_process_group("kofn", rank=communicator.rank, world_size=WORKERS, store=store)
            theirs = of_pytorch(communicator.rank)
            dist.barrier()
            dist.destroy_process_group()
            ours, _ = trained(Job(communicator), communicator.rank, stage=stage, bits=32)
            return theirs, ours

        found = crew.run(one)
    moved = (found[0][0] - flat(MODEL.parameters())).abs().max()
    assert moved > 0.05
    for theirs, ours in found:
        assert (ours - theirs).abs().max() < 5e-7


@pytest.mark.parametrize(
    ("stage", "bits"),
    [(3, 1), *(pytest.param(*each, marks=pytest.mark.long) for each in ((1, 1), (2, 1), (1, 8), (2, 8), (3, 8)))],
)
def test_few_bits_train_and_keep_workers_equal(stage: int, bits: int) -> None:
    settings = ZeroSettings(stage=stage, bits=bits)
    average, columns = elastic_calls([ELEMENTS], settings).average, ELEMENTS if stage > 1 else 0
    with beneath_a_switch(WORKERS, ELEMENTS, CODECS[bits], average=average, columns=columns) as crew:
        jobs = [Job(each) for each in crew]
        found = all_of(WORKERS, lambda rank: trained(jobs[rank], rank, 60, stage=stage, bits=bits, freeze_step=15))
        assert all(each.agent.totals().conserved for each in crew)
    parameters, optimizer = found[0]
    assert all(torch.equal(each, parameters) for each, _ in found)
    assert jobs[0].shared == jobs[1].shared == jobs[2].shared
    assert len({*jobs[0].shared}) == 60
    model = deepcopy(MODEL)
    nn.utils.vector_to_parameters(parameters, model.parameters())
    losses = [np.mean([loss_of(each, 0, step).item() for step in range(60)]) for each in (MODEL, model)]
    assert losses[1] < 0.85 * losses[0]
    assert optimizer.frozen == (bits == 1)


@pytest.mark.parametrize("workers", [4, *(pytest.param(each, marks=pytest.mark.long) for each in (2, 8))])
def test_memory_follows_the_formulas(workers: int) -> None:
    """The memory is that of zero-memory.toml for a small perceptron."""
    file = ExperimentFile.load(EXAMPLES / "zero-memory.toml", ["own.width=128", "own.block=2048"])
    cells = cells_of(file.only({"job.workers": [str(workers)]}), Path("out"))
    rows = [cell.labels | HOOKS.load("zero_memory:row")(cell) for cell in cells]
    assert len(rows) == 24 and [row["fault"] for row in rows if row["fault"]] == []
    (verdict,) = HOOKS.load("zero_memory:claims")(GivenResults(EXAMPLES / "zero-memory.toml", rows))
    assert verdict.holds and verdict.claim == f"{workers} workers: every kind within 10% of its formula"


def test_learning_rate_scheduler_steps_the_optimizer() -> None:
    with threads("ring", 1) as crew:
        model = nn.Linear(8, 4)
        optimizer = kofn_torch.zero(model, lr=1.0, bits=32, job=Job(crew.communicators[0]))
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.0)
        before = []
        for step in range(3):
            before.append(flat(model.parameters()))
            loss_of(model, 0, step).backward()
            optimizer.step()
            scheduler.step()
    assert (before[1] - before[0]).abs().min() > 0.9
    assert torch.equal(before[1], before[2])


def test_layer_is_in_memory_for_its_passes_alone() -> None:
    """With ZeRO-3 at most two of four equal layers are in memory: the one that computes and the next one."""
    with threads("ring", 1) as crew:
        model = nn.Sequential(*(nn.Linear(64, 64) for _ in range(4)))
        optimizer = kofn_torch.zero(model, stage=3, bits=32, job=Job(crew.communicators[0]))
        for _ in range(2):
            assert sum(each.untyped_storage().nbytes() for each in model.parameters()) == 0
            model(torch.ones(1, 64)).sum().backward()
            optimizer.step()
        layer = 4 * (64 * 64 + 64)
        assert optimizer.memory().parameters - 4 * layer <= 2 * layer


def errors(run: Callable[[int, Communicator], object], workers: int = 2) -> list[str]:
    def fails(communicator: Communicator) -> str:
        try:
            return f"nothing is wrong: {run(communicator.rank, communicator)}"
        except HostError as error:
            return f"{type(error).__name__}: {error}"

    with threads("ring", workers, 2.0) as crew:
        return crew.run(fails)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"stage": 4}, "stage must be 1, 2 or 3, got 4"),
        ({"bits": 2}, "bits must be 1, 8 or 32, got 2"),
        ({"freeze_step": 0}, "freeze_step must be 1 or more with bits = 1, which freezes the variance, got 0"),
        ({"residual": "int4"}, "residual must be one of 'exact', 'bfloat16', 'int8', got 'int4'"),
        ({"optimizer": "sgd"}, "optimizer must be 'adam' or 'lamb', got 'sgd'"),
        ({"lr": -1.0}, "lr must be a finite number, 0 or more, got -1.0"),
        ({"lr": float("nan")}, "lr must be a finite number, 0 or more, got nan"),
        ({"lr": "a"}, "lr must be a finite number, 0 or more, got 'a'"),
        ({"betas": (0.9,)}, r"betas must be two numbers, 0 to below 1, got \(0.9,\)"),
        ({"through": "ring"}, "through must be 'switch' or 'gloo', got 'ring'"),
        ({"through": "gloo", "bits": 8}, "must have a process group, got none"),
    ],
)
def test_invalid_settings_are_refused(given: dict[str, Any], words: str) -> None:
    if dist.is_initialized() and given.get("through") == "gloo":
        pytest.skip("another test has made a process group")
    with pytest.raises(kofn_torch.TorchError, match=words):
        kofn_torch.zero(nn.Linear(2, 2), **given)


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_parameter_without_a_gradient_is_named(stage: int) -> None:
    def run(rank: int, communicator: Communicator) -> None:
        model = nn.ModuleDict({"used": nn.Linear(2, 2), "unused": nn.Linear(2, 2)})
        optimizer = kofn_torch.zero(model, stage=stage, bits=32, job=Job(communicator))
        model["used"](torch.ones(1, 2)).sum().backward()
        optimizer.step()

    assert errors(run, 1)[0].startswith("TorchError: unused.weight must have a gradient, got none: every")


def test_another_model_or_other_settings_at_one_worker_are_an_error() -> None:
    def model(rank: int, communicator: Communicator) -> None:
        kofn_torch.zero(nn.Linear(2, 2 + rank), bits=32, job=Job(communicator))

    def settings(rank: int, communicator: Communicator) -> None:
        kofn_torch.zero(nn.Linear(2, 2), bits=32, eps=1e-8 * (1 + rank), job=Job(communicator))

    assert all("TorchError: worker 1 trains another model than worker 0" in each for each in errors(model))
    assert all("TorchError: worker 1 has other settings than worker 0" in each for each in errors(settings))


@pytest.mark.parametrize("stage", [2, 3])
def test_gradients_of_two_batches_in_a_step_are_refused(stage: int) -> None:
    def run(rank: int, communicator: Communicator) -> None:
        model = nn.Linear(8, 4)
        kofn_torch.zero(model, stage=stage, bits=32, job=Job(communicator))
        loss_of(model, 0, 0).backward()
        loss_of(model, 0, 1).backward()

    assert "must not be read, because backward() has sent it: stages 2 and 3" in errors(run, 1)[0]


@pytest.mark.parametrize("stage", [2, 3])
@pytest.mark.parametrize("clip", [nn.utils.clip_grad_norm_, nn.utils.clip_grad_value_])
def test_clipping_a_gradient_that_has_left_is_refused(stage: int, clip: Callable[..., object]) -> None:
    def run(rank: int, communicator: Communicator) -> None:
        model = nn.Sequential(nn.Linear(8, 4), nn.Linear(4, 4))
        optimizer = kofn_torch.zero(model, stage=stage, bits=32, job=Job(communicator))
        loss_of(model, 0, 0).backward()
        optimizer.step()
        loss_of(model, 0, 1).backward()
        clip(model.parameters(), 1.0)

    (error,) = errors(run, 1)
    assert error.startswith("TorchError: the gradient of 0.weight must not be read, because backward() has sent it")


def test_stage_1_clips_and_accumulates() -> None:
    """Clipped gradients of two batches equal those of one optimizer."""
    with threads("ring", 1) as crew:
        model, own = nn.Linear(8, 4), nn.Linear(8, 4)
        own.load_state_dict(model.state_dict())
        optimizer = kofn_torch.zero(model, stage=1, bits=32, job=Job(crew.communicators[0]))
        for one, stepper in ((model, optimizer), (own, torch.optim.Adam(own.parameters()))):
            for step in range(2):
                loss_of(one, 0, step).backward()
            nn.utils.clip_grad_norm_(one.parameters(), 0.01)
            stepper.step()
    assert (flat(model.parameters()) - flat(own.parameters())).abs().max() < 1e-7


@pytest.mark.parametrize("unscales", [False, True])
def test_all_workers_skip_a_step_in_which_one_overflows(unscales: bool) -> None:
    """The parameters are those of one optimizer, which skips the same steps; later losses of the workers differ."""

    def gradient(rank: int, step: int) -> float:
        return math.inf if (rank, step) in {(1, 2), (0, 4), (1, 4)} else (1.0 + rank) * (step + 1)

    def train(one: Communicator) -> tuple[torch.Tensor, int, float]:
        model = nn.Linear(1, 1, bias=False)
        nn.init.ones_(model.weight)
        optimizer = kofn_torch.zero(model, lr=0.01, stage=1, bits=32, job=Job(one))
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
        for step in range(6):
            scaler.scale(model(torch.tensor([gradient(one.rank, step)])).sum()).backward()
            if unscales:
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(model.parameters(), 5.0)
            scaler.step(optimizer)
            scaler.update()
        return flat(model.parameters()), optimizer.steps, scaler.get_scale()

    own = nn.Parameter(torch.ones(1))
    optimizer = torch.optim.Adam([own], lr=0.01)
    for step in (0, 1, 3, 5):
        given = torch.tensor([gradient(rank, step) for rank in range(WORKERS)])
        own.grad = (given.clamp(max=5.0) if unscales else given).mean(0, keepdim=True)
        optimizer.step()
    with threads("ring", WORKERS) as crew:
        found = crew.run(train)
    for parameters, steps, _ in found:
        assert (parameters - own.detach()).abs().max() < 1e-6
        assert steps == 4
    assert [scale for *_, scale in found] == [2.0, 1.0, 4.0]


@pytest.mark.parametrize("stage", [2, 3])
def test_grad_scaler_is_refused_where_gradients_have_left(stage: int) -> None:
    def run(rank: int, communicator: Communicator) -> None:
        model = nn.Linear(8, 4)
        optimizer = kofn_torch.zero(model, stage=stage, bits=32, job=Job(communicator))
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
        scaler.scale(loss_of(model, 0, 0)).backward()
        scaler.step(optimizer)

    assert "must not be read, because backward() has sent it: stages 2 and 3" in errors(run, 1)[0]


def test_models_that_cannot_be_sharded_are_refused() -> None:
    tied = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    tied[1].weight = tied[0].weight
    for model, stage, words in (
        (nn.Linear(2, 2).double(), 1, "weight must be float32, got float64"),
        (nn.Linear(2, 2).requires_grad_(False), 2, "the model must have at least one parameter that is trained"),
        (tied, 3, "each parameter must belong to one layer"),
        (tied.parameters(), 2, "the model must be a torch.nn.Module, got a generator"),
    ):
        with pytest.raises(kofn_torch.TorchError, match=words):
            kofn_torch.zero(model, stage=stage)


def test_shards_are_scattered_where_blocks_and_slots_permit(caplog: pytest.LogCaptureFixture) -> None:
    """Otherwise all workers get all means; if slots are the reason, it is logged."""

    def rows(stage: int, elements: int, slots: int = 256) -> BlockRows | None:
        job = JobSection(workers=4, words=4, slots=slots)
        calls = elastic_calls([elements, elements], ZeroSettings(stage=stage, bits=1))
        return calls.rows(job, calls.compress(Config.of({"job": {"words": 4}})))

    found = rows(2, 500_000)
    assert found is not None
    assert (found.columns, found.blocks) == (250_000, 124)
    assert rows(3, 500_000) == found
    assert rows(1, 500_000) is rows(2, 5_000) is None
    assert not caplog.messages
    assert rows(2, 500_000, slots=128) == found
    assert rows(2, 600_000, slots=128) is None
    (said,) = caplog.messages
    assert said == (
        "all means come down to all workers: job.slots is 128, more than 148 are needed for a reduce-scatter"
    )


def test_unsupported_optimizer_calls_are_refused() -> None:
    with threads("ring", 1) as crew:
        optimizer = kofn_torch.zero(nn.Linear(2, 2), bits=32, job=Job(crew.communicators[0]))
        with pytest.raises(kofn_torch.TorchError, match="no group of parameters must be added"):
            optimizer.add_param_group({"params": list(nn.Linear(2, 2).parameters())})
        with pytest.raises(kofn_torch.TorchError, match="closure"):
            optimizer.step(lambda: 0.0)


def test_residuals_may_be_set_in_the_script_or_the_configuration() -> None:
    def compress(script: compression.Residual, configured: compression.Residual) -> compression.CompressSection:
        config = Config.of({"job": {"words": 4}, "compress": {"residual": configured}})
        return elastic_calls([10], ZeroSettings(residual=script)).compress(config)

    assert compress("int8", "exact").residual == compress("exact", "int8").residual == "int8"
    words = r"compress\.residual must be 'bfloat16' here, or none, got 'int8'"
    with pytest.raises(kofn_torch.TorchError, match=words), place_errors():
        compress("bfloat16", "int8")
    with pytest.raises(kofn_torch.TorchError, match=r'residual must be "exact" with through = "gloo"'):
        GroupZero().connect([10], ZeroSettings(residual="int8", bits=1))


# -- over gloo


def over_gloo(run: Callable[[GroupZero, int], T], workers: int = WORKERS) -> list[T]:
    store = dist.HashStore()
    return all_of(workers, lambda rank: run(GroupZero(gloo_group(store, rank, workers)), rank))


@pytest.mark.parametrize("stage", [1, pytest.param(2, marks=pytest.mark.long), 3])
def test_over_gloo_it_trains_as_over_a_ring_without_a_warning(stage: int) -> None:
    with warnings.catch_warnings(action="error", category=FutureWarning):
        found = over_gloo(lambda job, rank: trained(job, rank, stage=stage, bits=32)[0])
    with threads("ring", WORKERS) as crew:
        (wanted, *_) = crew.run(lambda one: trained(Job(one), one.rank, stage=stage, bits=32)[0])
    assert all((each - wanted).abs().max() < 5e-7 for each in found)


class Branches(nn.Module):
    """A model whose branches have another order at worker 1."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other, self.last, self.rank = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 4), 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        branches = [lambda: torch.tanh(self.one(x)), lambda: self.other(x)]
        first, second = [branch() for branch in branches[:: -1 if self.rank == 1 else 1]]
        out: torch.Tensor = self.last(first + second)
        return out


BRANCHES = Branches()


def branched(job: ZeroJob, rank: int, stage: int) -> torch.Tensor:
    model = deepcopy(BRANCHES)
    model.rank = rank
    optimizer = kofn_torch.zero(model, stage=stage, bits=32, job=job)
    for step in range(3):
        loss_of(model, rank, step).backward()
        optimizer.step()
    return flat(model.parameters())


@pytest.mark.parametrize("stage", [2, 3])
def test_over_gloo_another_order_of_layers_is_refused(stage: int) -> None:
    """Gloo matches calls by number, whatever they contain."""

    def run(job: GroupZero, rank: int) -> None:
        with pytest.raises(kofn_torch.TorchError, match="worker 1 must call its layers in worker 0's order"):
            branched(job, rank, stage)

    over_gloo(run, 2)


def test_gradients_leave_in_any_order() -> None:
    with threads("ring", 2) as crew:
        found, other = crew.run(lambda one: branched(Job(one), one.rank, 2))
    with threads("ring", 2) as crew:
        wanted, _ = crew.run(lambda one: branched(Job(one), one.rank, 1))
    assert torch.equal(found, other)
    assert (found - wanted).abs().max() < 1e-7


def test_another_order_of_layers_in_stage_3_is_explained() -> None:
    def run(one: Communicator) -> str:
        with pytest.raises(HostError) as caught:
            branched(Job(one), one.rank, 3)
        return "".join(caught.value.__notes__)

    with threads("ring", 2, 2.0) as crew:
        for note in crew.run(run):
            assert re.match(r"while (one|other|last).weight was gathered: in stage 3 all workers must call the", note)


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_different_learning_rates_of_workers_are_detected(stage: int) -> None:
    """Each worker applies its rate to its own shard, so the parameters would be equal everywhere."""

    def step(model: nn.Module, job: ZeroJob, rank: int) -> None:
        optimizer = kofn_torch.zero(model, lr=0.1 * (rank + 1), stage=stage, bits=32, job=job)
        loss_of(model, 0, 0).backward()
        optimizer.step()

    def run(job: GroupZero, rank: int) -> None:
        with pytest.raises(
            kofn_torch.TorchError,
            match="worker 1 must step as worker 0 does, got another result: check learning rates and buffers",
        ):
            step(nn.Linear(8, 4), job, rank)

    over_gloo(run, 2)
    with threads("ring", 2) as crew:
        jobs = [Job(each) for each in crew.communicators]
        crew.run(lambda one: step(nn.Linear(8, 4), jobs[one.rank], one.rank))
    assert jobs[0].shared != jobs[1].shared


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"weight_decay": 0.1}, r"weight_decay must be given to kofn_torch.zero\(\), got it in the optimizer's group"),
        ({"betas": (0.5, 0.9)}, r"betas must be given to kofn_torch.zero\(\)"),
        ({"lr": float("nan")}, "lr must be a finite number, 0 or more, got nan"),
    ],
)
def test_unsupported_group_settings_are_refused(given: dict[str, Any], words: str) -> None:
    def run(rank: int, communicator: Communicator) -> None:
        model = nn.Linear(8, 4)
        optimizer = kofn_torch.zero(model, bits=32, job=Job(communicator))
        optimizer.param_groups[0].update(given)
        loss_of(model, 0, 0).backward()
        with pytest.raises(kofn_torch.TorchError, match=words):
            optimizer.step()

    assert errors(run, 1) == ["nothing is wrong: None"]


def test_gloo_leaves_no_thread_after_its_group() -> None:
    """Such a thread would abort the process when Python ends."""
    script = """
from pathlib import Path
import torch, torch.distributed as dist, kofn_torch
dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
model = torch.nn.Linear(2, 2)
optimizer = kofn_torch.zero(model, bits=32, through="gloo")
model(torch.ones(1, 2)).sum().backward()
optimizer.step()
threads = lambda: [each.read_text().strip() for each in Path("/proc/self/task").glob("*/comm")]
before = threads()
dist.destroy_process_group()
print(any("gloo" in name for name in before), any("runloop" in name for name in threads()))
"""
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert ended.stdout.split() == ["True", "False"]


@pytest.mark.parametrize("stage", [1, 2, 3])
@pytest.mark.parametrize("value", ["nan", "inf"])
def test_non_finite_gradient_is_refused_in_every_stage(stage: int, value: str) -> None:
    def run(job: GroupZero | Job, rank: int) -> str:
        model = nn.Linear(2, 2)
        optimizer = kofn_torch.zero(model, stage=stage, bits=32, job=job)
        with pytest.raises(GradientError) as caught:
            model(torch.tensor([[1.0, float(value)]])).sum().backward()
            optimizer.step()
        return str(caught.value)

    words = f"gradient element 1 of weight must be finite, got {value}"
    assert over_gloo(run, 1) == [words]
    with threads("ring", 1) as crew:
        assert crew.run(lambda one: run(Job(one), one.rank)) == [words]
