"""States of sharded optimizers: saved by four workers; loaded by four, two or five, and into a plain model."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest

if find_spec("torch") is None:
    pytest.skip("torch is not installed: kofn/run/setup.sh torch", allow_module_level=True)

import torch

import kofn_torch
from kofn_host.collectives import Communicator
from kofn_host.zero import CODECS, ZeroSettings
from kofn_host.zero.shards import Shards
from kofn_torch.errors import TorchError
from kofn_torch.state import State
from kofn_torch.zero_job import elastic_calls
from tests.pytorch.test_state import stored
from tests.pytorch.test_zero import ELEMENTS, MODEL, Job, loss_of
from tests.system.collectives.crews import threads
from tests.system.zero.crews import all_of, beneath_a_switch

pytestmark = pytest.mark.torch

STEPS, SAVED, FREEZE = 24, 12, 6


@contextmanager
def crew(workers: int, stage: int, bits: int, k: int = 0) -> Iterator[Sequence[Any]]:
    """Yield the workers' communicators: a ring's with 32 bits, else a switch's."""
    if bits == 32:
        with threads("ring", workers) as made:
            yield made.communicators
        return
    average = elastic_calls([ELEMENTS], ZeroSettings(stage=stage, bits=bits)).average
    with beneath_a_switch(
        workers, ELEMENTS, CODECS[bits], k=k, average=average, columns=columns(workers, stage)
    ) as communicators:
        yield communicators


def columns(workers: int, stage: int) -> int:
    """Return the elements of a row of reduce-scatters; 0: means are all-reduces."""
    sizes = [sum(each.numel() for each in unit) for unit in units()]
    return Shards(sizes, workers).shard_elements if stage == 3 else 0


def units() -> list[list[torch.Tensor]]:
    return [own for module in MODEL.modules() if (own := [*module.parameters(recurse=False)])]


class Trained:
    """A worker's losses by step, its state after step SAVED, and its parameters in the end."""

    def __init__(self, one: Communicator, states: Sequence[State] = (), steps: int = STEPS, **given: Any) -> None:
        model, self.losses = deepcopy(MODEL), dict[int, float]()
        given = {"freeze_step": FREEZE} | given
        self.optimizer = kofn_torch.zero(model, lr=0.01, job=Job(one), **given)
        if states:
            self.optimizer.load_state_dict(*states)
        self.first = self.optimizer.full_state_dict()
        for step in range(self.optimizer.steps, steps):
            loss = loss_of(model, one.rank, step)
            self.losses[step] = loss.item()
            loss.backward()
            self.optimizer.step()
            if step + 1 == SAVED:
                self.state, self.full = stored(self.optimizer.state_dict()), self.optimizer.full_state_dict()
        self.last = self.optimizer.full_state_dict()


def trained(workers: int, states: Sequence[State] = (), k: int = 0, **given: Any) -> list[Trained]:
    with crew(workers, given["stage"], given["bits"], k) as communicators:
        return all_of(workers, lambda rank: Trained(communicators[rank], states, **given))


def equal(one: State, other: State) -> bool:
    return one.keys() == other.keys() and all(torch.equal(each, other[name]) for name, each in one.items())


@pytest.mark.parametrize(
    ("stage", "bits", "optimizer"),
    [
        (1, 32, "adam"),
        (3, 1, "lamb"),
        (2, 8, "adam"),
        *(pytest.param(*each, marks=pytest.mark.long) for each in ((2, 32, "lamb"), (3, 32, "adam"), (1, 1, "adam"))),
    ],
)
def test_training_goes_on_to_the_bit(stage: int, bits: int, optimizer: str) -> None:
    given: dict[str, Any] = {"stage": stage, "bits": bits, "optimizer": optimizer}
    whole = trained(4, **given)
    rest = trained(4, [each.state for each in whole], **given)
    for one, other in zip(whole, rest, strict=True):
        assert equal(other.first, one.full)
        assert other.losses == {step: loss for step, loss in one.losses.items() if step >= SAVED}
        assert equal(other.last, one.last)


@pytest.mark.parametrize("bits", [32, 1, pytest.param(8, marks=pytest.mark.long)])
@pytest.mark.parametrize("workers", [2, pytest.param(5, marks=pytest.mark.long)])
def test_another_number_of_workers_goes_on(workers: int, bits: int) -> None:
    """The first parameters are the saved ones, and all that was pending is pending again."""
    given: dict[str, Any] = {"stage": 3, "bits": bits}
    whole = trained(4, **given)
    states = [each.state for each in whole]
    with crew(workers, **given) as communicators:
        rest = all_of(workers, lambda rank: Trained(communicators[rank], states, **given))
        assert bits == 32 or all(each.agent.totals().conserved for each in communicators)
    assert all(equal(each.first, whole[0].full) for each in rest)
    assert all(equal(each.last, rest[0].last) for each in rest)
    saved, begun = mean_loss(whole[0].full), mean_loss(MODEL.state_dict())
    assert mean_loss(rest[0].last) < (saved if bits == 32 else begun), "few bits are noisy, in so few steps"


def mean_loss(full: State) -> float:
    """Return a plain model's loss, over the data of many steps."""
    model = deepcopy(MODEL)
    model.load_state_dict(full)
    with torch.no_grad():
        return float(np.mean([loss_of(model, 0, step).item() for step in range(100)]))


def test_states_of_stage_1_and_2_export_the_model() -> None:
    for stage in (1, 2):
        found = trained(2, stage=stage, bits=32)
        assert equal(found[0].last, found[1].last)
        assert mean_loss(found[0].last) < mean_loss(MODEL.state_dict())


SCHEDULERS: dict[str, Callable[[torch.optim.Optimizer, int], Any]] = {
    "lambda": lambda optimizer, last: torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5**step, last),
    "step": lambda optimizer, last: torch.optim.lr_scheduler.StepLR(optimizer, 2, last_epoch=last),
    "one cycle": lambda optimizer, last: torch.optim.lr_scheduler.OneCycleLR(
        optimizer, 0.1, total_steps=10, cycle_momentum=False, last_epoch=last
    ),
}


def rates_and_group(optimizer: Any, schedule: Callable[[torch.optim.Optimizer, int], Any], how: str) -> Any:
    """Step and save an optimizer, load it, and return the rates of a scheduler made after that, and the group."""
    first, second = optimizer(), optimizer()
    scheduler = schedule(first, -1)
    first.param_groups[0]["own"] = "the script's"
    for _ in range(3):
        loss_of(first.model, 0, 0).backward()
        first.step()
        scheduler.step()
    second.load_state_dict(deepcopy(first.state_dict()))
    scheduler, rates = schedule(second, 2 if how == "last_epoch" else -1), list[float]()
    for _ in range(0 if how == "last_epoch" else 3):
        scheduler.step()
    for _ in range(3):
        rates.append(second.param_groups[0]["lr"])
        scheduler.step()
    return rates, {name: value for name, value in second.param_groups[0].items() if name in KNOWN}


KNOWN = ("lr", "initial_lr", "max_lr", "min_lr", "own")


@pytest.mark.parametrize("how", ["last_epoch", "steps"])
@pytest.mark.parametrize("name", SCHEDULERS)
@pytest.mark.filterwarnings("ignore")  # PyTorch misses steps before those of the new scheduler
def test_group_is_resumed_as_that_of_pytorchs_optimizers(name: str, how: str) -> None:
    def of_pytorch() -> Any:
        model = deepcopy(MODEL)
        made: Any = torch.optim.Adam(model.parameters(), lr=0.01)
        made.model = model
        return made

    def of_kofn() -> Any:
        model = deepcopy(MODEL)
        made: Any = kofn_torch.zero(model, lr=0.01, bits=32, job=Job(one))
        made.model = model
        return made

    wanted = rates_and_group(of_pytorch, SCHEDULERS[name], how)
    with threads("ring", 1) as made:
        (one,) = made.communicators
        assert rates_and_group(of_kofn, SCHEDULERS[name], how) == wanted
    assert set(wanted[1]) == set(KNOWN) - (set() if name == "one cycle" else {"max_lr", "min_lr"})


def test_late_gradients_are_conserved_with_another_number_of_workers() -> None:
    """With the fastest three of four, then with two workers, which share what four had pending."""
    given: dict[str, Any] = {"stage": 3, "bits": 8}
    states = [each.state for each in trained(4, k=3, **given)]
    own, zero = [state[f"worker-{rank}"] for rank, state in enumerate(states)], torch.zeros(1)
    with crew(2, **given) as communicators:
        loaded = all_of(2, lambda rank: Trained(communicators[rank], states, steps=SAVED, **given))
        state = all_of(2, lambda rank: stored(loaded[rank].optimizer.state_dict())[f"worker-{rank}"])
    for rank in range(2):
        assert torch.equal(state[rank]["pending"], own[rank]["pending"] + own[rank + 2]["pending"])
        assert torch.equal(
            state[rank].get("weights", zero), own[rank].get("weights", zero) + own[rank + 2].get("weights", zero)
        )


def test_states_of_other_trainings_are_refused_and_change_nothing() -> None:
    """Another model, other settings, a missing worker, two checkpoints, something else, and a second time."""
    states = [each.state for each in trained(4, stage=3, bits=32)]

    def others(**change: Any) -> list[State]:
        return [state | change for state in states]

    longer = states[0]["shapes"] | {"last.bias": torch.tensor([5])}
    cases: list[tuple[Sequence[Any], str]] = [
        (others(shapes=longer), r"must be of this model: last.bias must have the shape \[4\], got \[5\]"),
        (others(shapes={}), r"scale must have the shape \[16\], got no such parameter"),
        (others(untrained={"mean": torch.ones(2)}), r"mean must have the shape no such parameter, got \[2\]"),
        (others(settings=states[0]["settings"] | {"stage": 1}), "stage must be 1, as in the state, got 3"),
        (states[:2], r"must be given the states of workers \[\d, \d\] of 4, got none of \[\d"),
        (
            [states[0], states[1] | {"iteration": 3}],
            "must be of one iteration and one number of workers, got iteration",
        ),
        ([], "must be of one iteration and one number of workers, got none"),
        (
            [{"state": {}, "param_groups": []}],
            r"must be that of a sharded optimizer, .* got \['state', 'param_groups'\]",
        ),
    ]

    def load(one: Communicator) -> None:
        model = deepcopy(MODEL)
        optimizer = kofn_torch.zero(model, stage=3, bits=32, job=Job(one))
        for given, words in cases if one.rank else [*cases[:4], *cases[5:]]:
            with pytest.raises(TorchError, match=words):
                optimizer.load_state_dict(*given)
        assert equal(optimizer.full_state_dict(), MODEL.state_dict())
        optimizer.load_state_dict(*states)
        with pytest.raises(TorchError, match="must come before the first step, got 12 steps"):
            optimizer.load_state_dict(*states)

    with threads("ring", 2) as made:
        made.run(load)
