"""Backward passes in two parts, and trainings by every schedule, give the same bits as usual ones."""

import copy
import threading
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

if find_spec("torch") is None:
    pytest.skip("torch is not installed: kofn/run/setup.sh torch", allow_module_level=True)

import msgspec
import torch
from torch import nn
from torch.nn.utils import prune
from torch.utils.checkpoint import checkpoint

import kofn_torch
from kofn_common.config.errors import ConfigError
from kofn_common.config.schedule import FAMILIES, WITH_FRONT, ScheduleSection
from kofn_common.config.schema import Config
from kofn_torch.scheduled import ScheduledSession
from kofn_torch.split import SplitBackward, layers_of
from tests.pytorch import devices
from tests.pytorch.crew import Crew, SwitchedJob, copied, crew, loaded, parameters_of
from tests.system.collectives.switched import HOSTS

pytestmark = pytest.mark.torch

STEPS = 6


class Words(nn.Module):
    """A model with layers that are split and others, some of which read parameters of modules that they never call."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.norm = nn.Embedding(50, 32), nn.LayerNorm(32)
        self.encoder = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
        self.convolution, self.groups = nn.Conv1d(32, 16, 3, padding=1), nn.GroupNorm(4, 16)
        self.relu, self.out = nn.ReLU(inplace=True), nn.Linear(16, 10)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        hidden = self.encoder(self.norm(self.embedding(text)))
        out: torch.Tensor = self.out(self.relu(self.groups(self.convolution(hidden.transpose(1, 2))).mean(-1)))
        return out


def images() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(inplace=True), nn.MaxPool2d(2), nn.Conv2d(4, 8, 3), nn.Flatten()),
        *(nn.Linear(32, 24), nn.LayerNorm(24), nn.ReLU(), nn.Linear(24, 10)),
    )


def batch(name: str, data: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    given = (
        torch.randint(0, 50, (8, 12), generator=data) if name == "words" else torch.randn(8, 1, 8, 8, generator=data)
    )
    return given, torch.randint(0, 10, (8,), generator=data)


MODELS: dict[str, Callable[[], nn.Module]] = {"words": Words, "images": images}


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.line = nn.Linear(8, 8)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.line(self.line(values))
        return out


OTHERS: dict[str, Callable[[], nn.Module]] = {
    "line": lambda: nn.Linear(8, 8),
    "small": lambda: nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 4)),
    "twice": Twice,
}


_making = threading.Lock()


def made(name: str) -> nn.Module:
    with _making, torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return devices.placed({**MODELS, **OTHERS}[name]())


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("family", [*FAMILIES])
def test_gradients_equal_those_of_the_usual_backward_pass(name: str, family: str) -> None:
    usual = made(name)
    split = copy.deepcopy(usual)
    layers, computed = layers_of(split), list[int]()
    passes = SplitBackward(layers, computed.append, lambda *ended: None)
    later = {"front-first": [1, 0, *range(len(layers) - 1, 1, -1)], "late-front": [0, 1, 2]}.get(family, [])
    given, labels = batch(name, torch.Generator().manual_seed(1))
    for model, backward in ((usual, torch.Tensor.backward), (split, lambda loss: passes.backward(loss, later))):
        backward(nn.functional.cross_entropy(model(given), labels))
    for expected, found in zip(usual.parameters(), split.parameters(), strict=True):
        assert expected.grad is not None and found.grad is not None
        assert torch.equal(expected.grad, found.grad)
    assert sorted(computed) == [*range(len(layers))]
    behind = [at for at in later if layers[at].splits]
    assert computed[len(computed) - len(behind) :] == behind
    passes.close()
    assert all("forward" not in layer.module.__dict__ for layer in layers)


def test_frozen_layers_and_inputs_without_gradients_cost_nothing() -> None:
    """They are not computed; all other gradients are."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4))
    model[1].requires_grad_(False)
    model[2].bias.requires_grad_(False)
    layers, passes = layers_of(model), list[tuple[str, str]]()
    assert [layer.name for layer in layers] == ["0", "2"]
    split = SplitBackward(layers, lambda at: None, lambda kind, at, began_s: passes.append((kind, layers[at].name)))
    split.backward(model(torch.ones(2, 4)).sum(), [])
    assert passes == [("weight", "2"), ("error", "2"), ("weight", "0")], "the input needs no error term"
    assert [each.grad is not None for each in model.parameters()] == [True, True, False, False, True, False]


def scheduled(made: Crew, **section: Any) -> None:
    """Give all jobs of a crew this [schedule]."""
    for job in made.jobs:
        given = msgspec.structs.replace(job.config.schedule, **section)
        job.config = msgspec.structs.replace(job.config, schedule=given)


def train(name: str, job: SwitchedJob, **options: Any) -> tuple[ScheduledSession, nn.Module]:
    model = made(name)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
    session = kofn_torch.schedule(model, optimizer, scheduler, job=job, **options)
    data = torch.Generator().manual_seed(job.rank)
    while not session.done():
        given, labels = batch(name, data)
        session.backward(nn.functional.cross_entropy(model(given), labels))
        with torch.no_grad():
            model(given)  # the model's evaluation waits for all means
    return session, model


def trained(folder: Path, name: str, family: str, **options: Any) -> bytes:
    with crew(folder, STEPS) as workers:
        scheduled(workers, family=family, threshold_kb=2.0, front=2 if family in WITH_FRONT else 0)
        ended = workers.all(lambda job: train(name, job, **options))
        assert [session.iteration for session, _ in ended] == [workers.jobs[0].config.run.max_iterations] * HOSTS
        for session, _ in ended:
            session.close()
        every = {parameters_of(model) for _, model in ended}
        lines = [msgspec.json.decode(line) for line in workers.jobs[0].metrics.read_text().splitlines()]
    (parameters,) = every
    computed = [line for line in lines if "summary" not in line]
    assert all(line["schedule"].startswith(f"{family}:512") for line in computed)
    assert {entry[0] for line in computed for entry in line["timeline"]} >= {"error", "weight", "wait"}
    return parameters


def by_hand(name: str) -> bytes:
    """Return the parameters without kofn: from the mean of all workers' gradients in the same fixed point."""
    model = made(name)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    data = [torch.Generator().manual_seed(rank) for rank in range(HOSTS)]
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
    for _ in range(STEPS):
        found = []
        for generator in data:
            given, labels = batch(name, generator)
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(given), labels).backward()
            found.append([each.grad.clone() for each in model.parameters() if each.grad is not None])
        for each, *several in zip(model.parameters(), *found, strict=True):
            each.grad = torch.stack(several).mean(0)
        optimizer.step()
        scheduler.step()
    return parameters_of(model)


def test_schedules_give_the_same_parameters(tmp_path: Path) -> None:
    same_parameters("images", tmp_path, "sequential", "late-front")


@pytest.mark.long
@pytest.mark.parametrize("name", MODELS)
def test_every_schedule_gives_the_same_parameters(name: str, tmp_path: Path) -> None:
    same_parameters(name, tmp_path, *FAMILIES)


def same_parameters(name: str, folder: Path, *families: str) -> None:
    found = {family: trained(folder / family, name, family) for family in families if not (folder / family).mkdir()}
    assert len(set(found.values())) == 1
    ours, usual = (torch.frombuffer(bytearray(raw), dtype=torch.float32) for raw in (*{*found.values()}, by_hand(name)))
    assert torch.allclose(ours, usual, atol=2e-3), "Adam's first steps depend on signs, also of gradients near 0"


def test_clipping_by_the_global_norm_waits_for_all_layers(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    clipped = trained(tmp_path / "one", "images", "buckets", max_norm=0.1)
    (tmp_path / "two").mkdir()
    assert clipped != trained(tmp_path / "two", "images", "buckets")


class Read(nn.Module):
    """A model that reads parameters otherwise than by one call of their layer, or computes them from others."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.embedding, self.middle, self.last = nn.Embedding(20, 8), nn.Linear(8, 8), nn.Linear(8, 8)
        self.groups = nn.GroupNorm(2, 8)
        self.register_buffer("average", torch.zeros(8, 8))
        if kind in HOOKS:
            HOOKS[kind](self.last)
        if kind == "hook of an accumulated gradient":
            self.middle.bias.register_post_accumulate_grad_hook(tripled)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        hidden = torch.tanh(self.groups(self.middle(self.embedding(text))))
        if self.kind == "function":
            hidden = hidden + nn.functional.linear(hidden, self.last.weight)
        if self.kind == "function of a layer that is not split":
            hidden = hidden * self.late.weight
        if self.kind == "detached":
            hidden = hidden / self.last.weight.detach().norm()
        if self.kind == "adversarial":
            given = hidden.detach().requires_grad_()
            (gradient,) = torch.autograd.grad(self.called(given).square().sum(), given)
            hidden = hidden + 0.1 * gradient.sign()
        hidden = self.called(hidden)
        return nn.functional.linear(hidden, self.embedding.weight) if self.kind == "tied" else hidden

    def called(self, hidden: torch.Tensor) -> torch.Tensor:
        if self.kind == "keyword":
            return self.last(input=hidden)
        if "checkpoint" in self.kind:
            return checkpoint(self.last, hidden, use_reentrant=self.kind == "reentrant checkpoint")
        if self.kind == "function of a layer that is not split":
            hidden = self.late(hidden)
        found: torch.Tensor = self.last(hidden)
        return found

    def loss(self, step: int) -> torch.Tensor:
        text = torch.randint(0, 20, (6,), generator=torch.Generator().manual_seed(step))
        penalty = self.penalty() if self.kind == "penalty first" else 0.0
        loss = nn.functional.cross_entropy(self(text), (text + 1) % (20 if self.kind == "tied" else 8)) + penalty
        if self.kind == "gradients of parameters":
            loss = loss * sum(
                each.norm() for each in torch.autograd.grad(loss, [*self.parameters()], retain_graph=True)
            )
        if self.kind == "average":
            self.average.lerp_(self.middle.weight.detach(), 0.1)
            loss = loss + (self.average * self.last.weight).sum()
        return loss + self.penalty() if self.kind == "penalty" else loss

    def penalty(self) -> torch.Tensor:
        return 0.05 * torch.stack([each.square().sum() for each in self.parameters()]).sum()


def tripled(parameter: nn.Parameter) -> None:
    parameter.grad = None if parameter.grad is None else 3 * parameter.grad


HOOKS: dict[str, Callable[[Any], object]] = {
    "hook of a gradient": lambda layer: layer.weight.register_hook(lambda gradient: 3 * gradient),
    "prune": lambda layer: prune.l1_unstructured(layer, "weight", 0.3),
    "weight_norm": nn.utils.weight_norm,
    "parametrized": nn.utils.parametrizations.weight_norm,
    "spectral_norm": nn.utils.spectral_norm,
}

EQUAL = (
    *("tied", "penalty", "average", "keyword", "checkpoint", "reentrant checkpoint", *HOOKS),
    *("adversarial", "gradients of parameters", "hook of an accumulated gradient"),
)


@pytest.mark.filterwarnings("ignore")  # PyTorch warns about itself
@pytest.mark.parametrize("family", ["wait-free", "late-front"])
@pytest.mark.parametrize("kind", EQUAL)
def test_parameters_read_elsewhere_train_as_usual(kind: str, family: str, tmp_path: Path) -> None:
    """All workers have the same data, so the means are a worker's own gradients."""
    torch.manual_seed(0)
    usual = Read(kind)
    initial = copy.deepcopy(usual.state_dict())
    optimizer = torch.optim.SGD(usual.parameters(), lr=0.1)
    for step in range(STEPS):
        optimizer.zero_grad()
        usual.loss(step).backward()
        optimizer.step()

    def run(job: SwitchedJob) -> float:
        model = Read(kind)
        model.load_state_dict(initial)
        session = kofn_torch.schedule(model, torch.optim.SGD(model.parameters(), lr=0.1), job=job)
        for step in range(STEPS):
            session.backward(model.loss(step))
        session.finish()
        pairs = zip(model.state_dict().values(), usual.state_dict().values(), strict=True)
        return max((one - other).abs().max().item() for one, other in pairs)

    with crew(tmp_path, STEPS) as workers:
        scheduled(workers, family=family, front=2 if family in WITH_FRONT else 0)
        assert max(workers.all(run)) < 1e-5


Between = Callable[[nn.Module, torch.optim.Optimizer, int, list[Any]], object]

BETWEEN: dict[str, Between] = {
    "rates by hand": lambda model, optimizer, step, kept: optimizer.param_groups[0].update(lr=0.1 / (step + 2)),
    "a rate in a tensor": lambda model, optimizer, step, kept: optimizer.param_groups[0]["lr"].mul_(0.5),
    "zeros in gradients": lambda model, optimizer, step, kept: optimizer.zero_grad(set_to_none=False),
    "the state is saved": lambda model, optimizer, step, kept: kept.append(
        copy.deepcopy([*model.state_dict().values(), *optimizer.state_dict()["state"][0].values()])
    ),
    "the state is loaded": lambda model, optimizer, step, kept: model.load_state_dict(
        {name: each / 2 for name, each in model.state_dict().items()}
    ),
}


@pytest.mark.parametrize("name", BETWEEN)
def test_calls_between_steps_work_as_usual(name: str, tmp_path: Path) -> None:
    """An iteration's optimizer step has the settings at the iteration's end, though it runs later."""

    def small() -> tuple[nn.Module, torch.optim.Optimizer]:
        model = made("small")
        rate = torch.tensor(0.1) if name == "a rate in a tensor" else 0.1
        return model, torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9)

    def loss(model: nn.Module, step: int) -> torch.Tensor:
        found: torch.Tensor = model(torch.full((2, 8), step + 1.0)).square().mean()
        return found

    usual, optimizer = small()
    wanted = list[Any]()
    for step in range(STEPS):
        optimizer.zero_grad()
        loss(usual, step).backward()
        optimizer.step()
        BETWEEN[name](usual, optimizer, step, wanted)

    def run(job: SwitchedJob) -> None:
        (model, optimizer), kept = small(), list[Any]()
        session = kofn_torch.schedule(model, optimizer, job=job)
        for step in range(STEPS):
            session.backward(loss(model, step))
            BETWEEN[name](model, optimizer, step, kept)
        session.close()
        torch.testing.assert_close([*model.parameters()], [*usual.parameters()], check_device=False)
        torch.testing.assert_close(kept, wanted, check_device=False)

    with crew(tmp_path, STEPS) as workers:
        scheduled(workers, family="priority")
        workers.all(run)


@pytest.mark.parametrize("copy", [copied, loaded])
def test_copy_of_a_model_is_a_usual_one(copy: Callable[[nn.Module], Any], tmp_path: Path) -> None:
    given = torch.ones(2, 8)

    def run(job: SwitchedJob) -> None:
        model, usual = made("small"), made("small")
        session = kofn_torch.schedule(model, torch.optim.SGD(model.parameters(), lr=0.1), job=job)
        other = copy(model)
        for each in (other, usual):
            each(given).square().mean().backward()
        torch.testing.assert_close([one.grad for one in other.parameters()], [one.grad for one in usual.parameters()])
        for _ in range(2):
            session.backward(model(given).square().mean())
        session.close()

    with crew(tmp_path, 2) as workers:
        scheduled(workers, family="priority")
        workers.all(run)


@pytest.mark.parametrize("kind", ["function", "detached", "penalty first", "function of a layer that is not split"])
def test_parameters_read_before_their_layers_call_are_refused(kind: str, tmp_path: Path) -> None:
    def run(job: SwitchedJob) -> str:
        model = Read(kind)
        model.late = nn.GroupNorm(2, 8)
        before = parameters_of(model)
        session = kofn_torch.schedule(model, torch.optim.SGD(model.parameters(), lr=0.1), job=job)
        with pytest.raises(kofn_torch.TorchError) as caught:
            session.backward(model.loss(0))
        assert parameters_of(model) == before
        return str(caught.value)

    with crew(tmp_path, STEPS) as workers:
        scheduled(workers, family="priority")
        name = {"penalty first": "embedding", "function of a layer that is not split": "late"}.get(kind, "last")
        for words in workers.all(run):
            assert words.startswith("a parameter of ") and "must be read after its layer's call" in words
            assert name in words or kind == "penalty first"


def test_gradient_with_a_later_part_is_refused() -> None:
    torch.manual_seed(0)
    model = Read("tied")
    split = SplitBackward(layers_of(model), lambda at: None, lambda *ended: None)
    split.backward(model.loss(0), [])
    split.backward(model.loss(1), [])
    with pytest.raises(kofn_torch.TorchError, match=r"a parameter of (middle|last) must get its whole gradient from"):
        split.backward(model.loss(2) + model.penalty(), [])


def refused(folder: Path, model: nn.Module, words: str, *, optimizer: Any = torch.optim.SGD, **given: Any) -> None:
    section = {"family": "priority", **{key: given.pop(key) for key in ("family", "front") if key in given}}
    job = SwitchedJob(
        msgspec.structs.replace(Config.of({"job": {"workers": HOSTS}}), schedule=ScheduleSection(**section)),
        *(0, folder / "worker-0.jsonl", None, None, 1.0),  # type: ignore[arg-type]  # no worker joins
    )
    with pytest.raises(kofn_torch.TorchError, match=words):
        kofn_torch.schedule(model, optimizer(model.parameters(), lr=0.1), job=job, **given)


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(4, 4), nn.Linear(4, 4)
        self.other.weight = self.one.weight


def test_models_that_cannot_be_scheduled_are_refused(tmp_path: Path) -> None:
    line = nn.Linear(4, 4)
    refused(tmp_path, line, "schedule.family must be one of sequential", family=None)
    refused(tmp_path, line, "schedule.family must name a family, got 'auto'", family="auto")
    refused(
        tmp_path, line, r"schedule.front must be 0 to 1, all of the model's layers, got 2", family="late-front", front=2
    )
    refused(tmp_path, line, "schedule.family must be one of .* got priority, which steps", max_norm=1.0)
    refused(tmp_path, line, "got LBFGS, which needs several gradients a step", optimizer=torch.optim.LBFGS)
    refused(tmp_path, Tied(), "each parameter must belong to one layer, got one that one and other share")
    refused(
        tmp_path,
        nn.Flatten(),
        "the model must have at least one parameter that is trained",
        optimizer=lambda given, lr: torch.optim.SGD([torch.zeros(1)]),
    )
    with pytest.raises(ConfigError, match="threshold_kb"):
        Config.of({"schedule": {"threshold_kb": 0}})


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("twice", "line must be used once in a backward pass, got a second use"),
        ("line", "a gradient must not be changed after backward()"),
    ],
)
def test_problems_during_training_are_errors_at_all_workers(name: str, words: str, tmp_path: Path) -> None:
    """The error is one line."""
    with crew(tmp_path, STEPS, give_up_s=5.0) as workers:
        scheduled(workers, family="priority")

        def spoil(job: SwitchedJob) -> str:
            model = made(name)
            session = kofn_torch.schedule(model, torch.optim.SGD(model.parameters(), lr=0.1), job=job)
            model(torch.ones(2, 8))  # a forward pass without a backward pass does not count
            with pytest.raises(kofn_torch.TorchError) as caught:
                session.backward(model(torch.ones(2, 8)).sum())
                nn.utils.clip_grad_norm_(model.parameters(), 0.1)
                model(torch.ones(2, 8))
            session.fail(kofn_torch.TorchError("over"))
            return str(caught.value)

        assert all(words in error for error in workers.all(spoil))


def differentiated_twice(model: Any, optimizer: torch.optim.Optimizer) -> None:
    given = torch.ones(2, 8, requires_grad=True)
    torch.autograd.grad(model(given).sum(), given, create_graph=True)


AMISS: dict[str, Callable[[Any, torch.optim.Optimizer], object]] = {
    "2 must not be differentiated with create_graph=True": differentiated_twice,
    "gets a gradient outside of session.backward": lambda model, optimizer: model(torch.ones(2, 8)).sum().backward(),
    "step() must not be called": lambda model, optimizer: optimizer.step(),
    "2.weight was frozen": lambda model, optimizer: model[2].requires_grad_(False),
    "0.weight is trained, but was frozen": lambda model, optimizer: model[0].requires_grad_(True),
    "2.weight is trained, but was frozen or was another": lambda model, optimizer: model.load_state_dict(
        model.state_dict(), assign=True
    ),
}


@pytest.mark.parametrize("words", AMISS)
def test_misuse_by_a_script_is_named(words: str, tmp_path: Path) -> None:
    def run(job: SwitchedJob) -> str:
        model = made("small")
        model[0].requires_grad_(False)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        session = kofn_torch.schedule(model, optimizer, job=job)
        session.backward(model(torch.ones(2, 8)).sum())
        model(torch.ones(2, 8))
        with pytest.raises(kofn_torch.TorchError) as caught:
            AMISS[words](model, optimizer)
            session.backward(model(torch.ones(2, 8)).sum())
        session.fail(kofn_torch.TorchError("over"))
        return str(caught.value)

    with crew(tmp_path, STEPS, give_up_s=5.0) as workers:
        scheduled(workers, family="priority")
        assert all(words in error for error in workers.all(run))
