"""ZeRO-3's parameters between passes: reading or writing them is refused by name, whatever a layer returns."""

import copy
import io
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import pytest

if find_spec("torch") is None:
    pytest.skip("torch is not installed: kofn/run/setup.sh torch", allow_module_level=True)

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils import parameters_to_vector
from torch.optim.swa_utils import AveragedModel
from torch.utils.checkpoint import checkpoint

import kofn_torch
from kofn_host.collectives import Communicator
from kofn_torch.errors import TorchError
from kofn_torch.zero import ShardedOptimizer
from tests.pytorch.crew import copied, loaded
from tests.pytorch.test_zero import Job
from tests.system.collectives.crews import threads

pytestmark = pytest.mark.torch

WORDS = r"0\.weight is sharded: it must be read in its layer's passes or in whole_parameters\(\)"


def layers() -> nn.Sequential:
    return nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 2))


def step(model: nn.Module, optimizer: torch.optim.Optimizer, seed: int = 0) -> None:
    model(torch.randn(2, 64, generator=torch.Generator().manual_seed(seed))).square().mean().backward()
    optimizer.step()


def sharded(communicator: Any, model: nn.Module, stage: int = 3) -> ShardedOptimizer:
    return kofn_torch.zero(model, lr=0.01, stage=stage, bits=32, job=Job(communicator))


class Writes(nn.Linear):
    """A layer that changes its weight in place, which no shard would see."""

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            self.weight *= 0.5
        return super().forward(values)


class Keeps(nn.Linear):
    """A layer that keeps a view of its weight."""

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        self.kept = self.weight.detach().t()[1:]
        assert len(list(self.bias)) == self.out_features
        return super().forward(values)


READS: dict[str, Callable[[nn.Sequential], object]] = {
    "norm": lambda model: model[0].weight.norm(),
    "save": lambda model: torch.save(model.state_dict(), io.BytesIO()),
    "save the model": lambda model: torch.save(model, io.BytesIO()),
    "penalty": lambda model: torch.stack([each.square().sum() for each in model.parameters()]).sum(),
    "average": lambda model: [torch.zeros(each.shape).lerp_(each, 0.1) for each in model.parameters()],
    "averaged model": AveragedModel,
    "deepcopy": copy.deepcopy,
    "vector": lambda model: parameters_to_vector(model.parameters()),
    "numpy": lambda model: model[0].weight.detach().numpy(),
    "as an array": lambda model: np.asarray(model[0].weight.data),
    "a number": lambda model: float(model[0].weight[0, 0]),
    "list": lambda model: model[0].weight.tolist(),
    "iteration": lambda model: list(model[0].weight),
    "another dtype": lambda model: model.bfloat16(),
    "forward": lambda model: model[0].forward(torch.ones(1, 64)),
    "function": lambda model: functional.linear(torch.ones(1, 64), model[0].weight),
    "kept view": lambda model: model[0].kept + 1,
    "kept view of a view": lambda model: model[0].kept.numpy(),
    "initialise": lambda model: nn.init.zeros_(model[0].weight),
    "index": lambda model: model[0].weight.__setitem__(0, 1.0),
    "data": lambda model: setattr(model[0].weight, "data", torch.ones(64, 64)),
    "another optimizer": lambda model: torch.optim.SGD(_with_gradients(model), lr=0.1).step(),
}


def _with_gradients(model: nn.Module) -> list[nn.Parameter]:
    for each in model.parameters():
        each.grad = torch.zeros(each.shape)
    return list(model.parameters())


@pytest.mark.parametrize("read", READS)
def test_reading_or_writing_a_parameter_without_memory_is_refused(read: str) -> None:
    model = layers()
    model[0] = Keeps(64, 64)
    with threads("ring", 1) as crew:
        optimizer = sharded(crew.communicators[0], model)
        for seed in range(2):
            step(model, optimizer, seed)
        with pytest.raises(TorchError, match=WORDS):
            READS[read](model)


def test_layer_that_writes_its_parameter_is_refused() -> None:
    model = layers()
    model[0] = Writes(64, 64)
    with threads("ring", 1) as crew:
        optimizer = sharded(crew.communicators[0], model)
        with pytest.raises(TorchError, match=r"and written before kofn_torch.zero\(\)"):
            step(model, optimizer)


def test_loading_a_state_is_refused_by_the_names_of_the_parameters() -> None:
    model, other = layers(), layers()
    with threads("ring", 1) as crew:
        optimizer = sharded(crew.communicators[0], model)
        with pytest.raises(RuntimeError, match=WORDS):
            model.load_state_dict(other.state_dict())
        step(model, optimizer)


def test_properties_without_values_are_available() -> None:
    model = layers()
    with threads("ring", 1) as crew:
        optimizer = sharded(crew.communicators[0], model)
        step(model, optimizer)
        assert [each.numel() for each in model.parameters()] == [4096, 64, 128, 2]
        assert [each.shape[0] for each in model.parameters()] == [64, 64, 2, 2]
        assert {each.dtype for each in model.parameters()} == {torch.float32}
        assert all(
            each.requires_grad and each.is_leaf and isinstance(each, nn.Parameter) for each in model.parameters()
        )
        assert repr(model[0].weight) == "0.weight, sharded: whole_parameters() has the values of (64, 64)"
        assert "in_features=64" in repr(model)


@pytest.mark.filterwarnings("ignore")  # PyTorch warns about what it does not compile
def test_compiled_model_trains() -> None:
    model = layers()
    before = [each.tolist() for each in model.parameters()]
    with threads("ring", 1) as crew:
        optimizer = sharded(crew.communicators[0], model)
        step(torch.compile(model, backend="eager"), optimizer)
        with optimizer.whole_parameters():
            assert [each.tolist() for each in model.parameters()] != before


def test_values_read_in_whole_parameters_stay() -> None:
    """A state_dict() may be saved afterwards, and loads without kofn."""
    model, usual = layers(), layers()
    usual.load_state_dict(model.state_dict())
    adam, out = torch.optim.Adam(usual.parameters(), lr=0.01), io.BytesIO()
    with threads("ring", 1) as crew:
        optimizer = sharded(crew.communicators[0], model)
        step(model, optimizer)
        with optimizer.whole_parameters():
            state, views = model.state_dict(), [each.detach() for each in model.parameters()]
            arrays, whole = [each.detach().numpy() for each in model.parameters()], copy.deepcopy(usual)
            whole.load_state_dict(state)
        step(model, optimizer, 1)
        torch.save(state, out)
    step(usual, adam)
    out.seek(0)
    for found in (
        torch.load(out, weights_only=True).values(),
        views,
        map(torch.from_numpy, arrays),
        whole.parameters(),
    ):
        for one, other in zip(found, usual.parameters(), strict=True):
            assert torch.allclose(one, other, atol=1e-5)


def in_data(model: nn.Sequential) -> None:
    """Clip a weight through its data, as in a Wasserstein GAN."""
    model[2].weight.data.clamp_(-0.01, 0.01)


def elsewhere(model: nn.Sequential) -> None:
    model[2].weight.data = model[2].weight.data.clone()


@pytest.mark.parametrize(
    "write",
    [
        lambda model: nn.init.zeros_(model[2].weight),
        lambda model: model.double().float(),
        in_data,
        elsewhere,
    ],
)
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_values_that_the_shards_do_not_get_are_refused(stage: int, write: Callable[[nn.Module], object]) -> None:
    """A step would undo them, or no step would apply to them."""
    model = layers()
    with threads("ring", 1) as crew:
        optimizer = sharded(crew.communicators[0], model, stage)
        step(model, optimizer)
        with pytest.raises(TorchError, match=r"weight .*must not be written .*the shards have the parameters' values"):
            with optimizer.whole_parameters():
                write(model)
            step(model, optimizer)


@pytest.mark.parametrize("stage", [1, 3])
@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda model: model[0].requires_grad_(True), "0.weight is trained, but was frozen"),
        (lambda model: setattr(model[2], "bias", nn.Parameter(torch.ones(2))), "2.bias is trained, but was"),
        (lambda model: model[2].requires_grad_(False), "2.weight was frozen after"),
    ],
)
def test_later_change_of_the_trained_parameters_is_refused(
    change: Callable[[nn.Sequential], object], words: str, stage: int
) -> None:
    model = layers()
    model[0].requires_grad_(False)
    with threads("ring", 1) as crew:
        optimizer = sharded(crew.communicators[0], model, stage)
        step(model, optimizer)
        change(model)
        with pytest.raises(TorchError, match=words):
            optimizer.step()


@pytest.mark.parametrize("take", [copied, loaded])
def test_copy_of_whole_parameters_is_a_usual_model(take: Callable[[nn.Module], Any]) -> None:
    """It gathers nothing: one worker can evaluate it alone."""
    model, given = layers(), torch.ones(1, 64)
    wanted = model(given)

    def run(one: Communicator) -> Any:
        own = copy.deepcopy(model)
        optimizer = sharded(one, own)
        with optimizer.whole_parameters():
            return take(own)

    with threads("ring", 2, 2.0) as crew:
        found, _ = crew.run(run)
        assert torch.equal(found(given), wanted)


@dataclass
class Output:
    hidden: torch.Tensor


class Block(nn.Module):
    """A layer that returns a product of its own parameters, through `wrap`."""

    def __init__(self, wrap: Callable[[torch.Tensor], Any]) -> None:
        super().__init__()
        self.wrap = wrap
        self.one, self.other = nn.Parameter(torch.randn(64, 64) * 0.1), nn.Parameter(torch.randn(64, 64) * 0.1)

    def forward(self, values: torch.Tensor) -> Any:
        return self.wrap(torch.tanh(values @ self.one) @ self.other)


class Blocks(nn.Module):
    """Two blocks with residual connections, which add to an output in place."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        wrap = {"view": lambda out: out.unsqueeze(0).squeeze(0), "dataclass": Output}.get(kind, lambda out: out)
        self.kind, self.first, self.second, self.last = kind, Block(wrap), Block(wrap), nn.Linear(64, 2)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        values = values.requires_grad_()  # a reentrant checkpoint would give no gradients otherwise
        for block in (self.first, self.second):
            if "checkpoint" in self.kind:
                found = checkpoint(block, values, use_reentrant="reentrant" in self.kind)
            else:
                found = block(values)
            found = found.hidden if self.kind == "dataclass" else found
            found += values
            values = found
        out: torch.Tensor = self.last(values)
        return out


@pytest.mark.parametrize("kind", ["view", "dataclass", "checkpoint", "reentrant checkpoint"])
def test_layers_with_any_return_value_train_as_usual(kind: str) -> None:
    model = Blocks(kind)
    usual = copy.deepcopy(model)
    adam = torch.optim.Adam(usual.parameters(), lr=0.01)
    with threads("ring", 1) as crew:
        optimizer = sharded(crew.communicators[0], model)
        for seed in range(3):
            adam.zero_grad()
            step(model, optimizer, seed)
            step(usual, adam, seed)
        assert sum(each.untyped_storage().nbytes() for each in model.parameters()) == 0
        with optimizer.whole_parameters():
            pairs = zip(model.parameters(), usual.parameters(), strict=True)
            assert max((one - other).abs().max() for one, other in pairs) < 1e-4
