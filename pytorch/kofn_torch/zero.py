"""An optimizer whose state, gradients and parameters are sharded over the job's workers (ZeRO), in 32, 8 or 1 bit."""

import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from functools import partial
from typing import Any, Literal, cast

import numpy as np
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from kofn_common.config.compress import Residual
from kofn_common.results.memory import Memory
from kofn_host.arrays import Arrays, Floats, Floats64
from kofn_host.errors import ZeroError
from kofn_host.zero import NUMBER, ExactCalls, OptimizerName, SwitchMean, ZeroOptimizer, ZeroSettings, is_number
from kofn_torch.departed import DepartedGradient
from kofn_torch.errors import TorchError
from kofn_torch.layer_parameters import GatheredLayers, LayerParameters, digest_of, joined, units_of
from kofn_torch.staging import Staging
from kofn_torch.state import WORKER, State, check_model, taken
from kofn_torch.untrained import UntrainedState, check_statistics
from kofn_torch.zero_job import GroupZero, SwitchedZero, ZeroJob

OPTIMIZER = "sharded optimizer"
"""The entry "of" in the state of a sharded optimizer."""

STRUCTURE = ("optimizer", "stage", "bits")
"""The settings that must be equal in a state and in the optimizer that loads it, because the state's arrays depend on
them. With one bit freeze_step must be equal, too."""

SETTINGS = {field.name for field in fields(ZeroSettings)}

WRITTEN = "the shards have the parameters' values; loading, initialising and converting come before kofn_torch.zero()"


def zero(
    model: nn.Module,
    optimizer: OptimizerName = "adam",
    *,
    lr: float = 1e-3,
    stage: int = 1,
    bits: int = 1,
    freeze_step: int = 100,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    decoupled: bool = False,
    residual: Residual = "exact",
    through: Literal["switch", "gloo"] = "switch",
    job: ZeroJob | None = None,
) -> "ShardedOptimizer":
    """Return a model's optimizer, sharded over the workers; all workers begin with worker 0's parameters and buffers.

        optimizer = kofn_torch.zero(model, lr=1e-3, stage=2, bits=1, freeze_step=100)
        for batch in batches:
            loss(model, batch).backward()
            optimizer.step()

    The model must not be wrapped in DistributedDataParallel. `stage` 1 shards the optimizer's state, `stage` 2 also the
    gradients, `stage` 3 also the parameters. ZeroSettings explains bits, freeze_step, decoupled and the other settings.
    `residual` is the precision of the residual: 8 bytes a parameter ("exact"), or 2 bytes ("bfloat16") or 1 byte
    ("int8"), which lose rounding errors. `through` "gloo" is the baseline over the process group. Without a `job`,
    environment variables name the job (docs/howto/zero.md).

    Returns when all workers have joined. Raises TorchError if the model, a setting or the environment is not supported,
    or if a worker trains another model. CollectiveError names the workers that are missing.
    """
    if not isinstance(model, nn.Module):
        raise TorchError(f"the model must be a torch.nn.Module, got a {type(model).__name__}")
    if isinstance(model, DistributedDataParallel):
        raise TorchError("the model must not be a DistributedDataParallel, which reduces by itself: give model.module")
    check_statistics(model)
    if not is_number(lr):
        raise TorchError(f"lr must be {NUMBER}, got {lr!r}")
    if through not in ("switch", "gloo"):
        raise TorchError(f"through must be 'switch' or 'gloo', got {through!r}")
    try:
        settings = ZeroSettings(
            optimizer=optimizer,
            stage=stage,
            bits=bits,
            freeze_step=freeze_step,
            betas=betas,
            eps=eps,
            weight_decay=weight_decay,
            decoupled=decoupled,
            residual=residual,
        )
    except ZeroError as error:
        raise TorchError(str(error)) from error
    return ShardedOptimizer(model, settings, lr, job or (SwitchedZero() if through == "switch" else GroupZero()))


class ShardedOptimizer(torch.optim.Optimizer):  # type: ignore[misc]  # no types of PyTorch's are read
    """The optimizer that zero() returns; learning rate schedulers work with it.

    In stages 2 and 3 gradients are sent during the backward pass: parameters have no gradients afterwards.
    """

    def __init__(self, model: nn.Module, settings: ZeroSettings, rate: float, job: ZeroJob) -> None:
        named = units_of(model, settings.stage)
        super().__init__([parameter for unit in named for _, parameter in unit], {"lr": rate})
        sizes = [sum(parameter.numel() for _, parameter in unit) for unit in named]
        calls, compressed = job.connect(sizes, settings)
        untrained = UntrainedState(model, (parameter for unit in named for _, parameter in unit))
        _check_alike(calls, digest_of(named) ^ untrained.digest, settings)
        _load_first(calls, untrained)
        self._units = [LayerParameters(unit, calls.workers) for unit in named]
        device = self._units[0].device
        self._on_cpu = device.type == "cpu"
        self._staging = Staging(device, self._fail) if settings.stage == 2 and not self._on_cpu else None
        """Only stage 2 has a Staging: in stage 3 gathers come between reductions, and over gloo one thread must make
        all calls."""
        self._step_supports_amp_scaling = settings.stage == 1
        """The attribute that tells GradScaler that this optimizer itself unscales gradients and skips steps. All
        workers must skip a step together."""
        self._error: Exception | None = None
        self._job, self._settings, self._calls, self._untrained = job, settings, calls, untrained
        self._model, self._compressed = model, compressed
        parameters = calls.broadcast(joined(self._units))
        self._whole = parameters
        """All parameters in main memory, in stage 1."""
        if settings.stage == 1 and self._on_cpu:
            (unit,) = self._units
            unit.flat[: unit.size] = torch.from_numpy(parameters)
            parameters = unit.flat[: unit.size].numpy()
        self._zero = ZeroOptimizer(settings, parameters, [unit.sizes for unit in self._units], calls, compressed)
        self._gather_all()
        self._layers: GatheredLayers | None = None
        if settings.stage == 3:
            self._layers = GatheredLayers(model, self._units, self._gather, self._computed)
        elif settings.stage == 2:
            for at, unit in enumerate(self._units):
                left = [len(unit.named)]
                for _, parameter in unit.named:
                    parameter.register_post_accumulate_grad_hook(partial(self._counted, at, left))

    def step(self, closure: Callable[[], float] | None = None) -> None:
        """Step with the mean gradient of all workers; afterwards all workers have the same parameters.

        With a GradScaler all workers skip the step if a gradient of any worker has overflowed.
        """
        if closure is not None:
            raise TorchError("step() must have no closure, which would need several gradients a step")
        self._untrained.check_trained()
        if self._settings.stage < 3 and (name := next(filter(None, (unit.written for unit in self._units)), None)):
            raise TorchError(f"{name} must not be written or moved between two steps: {WRITTEN}")
        rate = self._rate()
        if self._overflows():
            self.zero_grad()
            return
        if self._settings.stage == 1:
            self._zero.put(0, self._units[0].finite(self._units[0].take_gradient()))
        else:
            self._check_whole()
        self._zero.step(rate)
        for parameter in self.param_groups[0]["params"]:
            parameter.grad = None
        if self._layers is not None:
            self._layers.begin()
            shared = self._calls.gather(np.array([zlib.crc32(self._zero.shard.data)]))
        else:
            shared = self._gather_all()
        alike = shared, np.array([rate]), self._untrained.values()
        self._job.stepped(np.concatenate([values.reshape(-1).view(np.uint8) for values in alike]), self.memory())

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the gradients in stage 1. In stages 2 and 3 do nothing, because gradients leave during the backward
        pass."""
        if self._settings.stage == 1:
            super().zero_grad(set_to_none)

    @property
    def steps(self) -> int:
        """The number of steps so far."""
        return self._zero.steps

    @property
    def frozen(self) -> bool:
        """Whether the next step is in one bit."""
        return self._settings.bits == 1 and self._zero.steps >= self._settings.freeze_step

    @contextmanager
    def whole_parameters(self) -> Iterator[None]:
        """Give all parameters their values, so that a script can read them (for a checkpoint in stage 3). All workers
        enter the block together.

        Values that were read in the block stay valid afterwards. Raises TorchError if a parameter was written.
        """
        if self._layers is None:
            yield
            return
        self._layers.lend_all()
        try:
            yield
        finally:
            written = self._layers.take_back_all()
        if written:
            raise TorchError(f"{written[0]} and its layer must not be written in whole_parameters(): {WRITTEN}")

    def memory(self) -> Memory:
        """Return this worker's memory, in bytes. In stage 3 the memory of parameters is the most that was gathered at
        once."""
        own = self._zero.memory()
        model = sum(unit.nbytes for unit in self._units) if self._layers is None else self._layers.peak_bytes
        gradients = sum(
            4 * parameter.numel()
            for unit in self._units
            for _, parameter in unit.named
            if parameter.grad is not None and not isinstance(parameter.grad, DepartedGradient)
        )
        return own + Memory(parameters=model, gradients=gradients)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Accept the one group of parameters that PyTorch's constructor adds."""
        if self.param_groups:
            raise TorchError("no group of parameters must be added: all trained parameters are in the model's group")
        super().add_param_group(param_group)

    def full_state_dict(self) -> State:
        """Return a copy of the model's whole state_dict(), which any nn.Module loads; all workers must call this method
        together."""
        with self.whole_parameters():
            return {name: tensor.clone() for name, tensor in self._model.state_dict().items()}

    def state_dict(self) -> State:
        """Return this worker's state after the latest step: its shards of parameters and optimizer, its pending
        gradients, and the state that all workers share, with frozen parameters and buffers.

        With 8 bits or 1 bit, all workers must call this method together. Raise TorchError in the middle of a step.
        """
        if self._zero.missing != [*range(len(self._units))]:
            raise TorchError("state_dict() must come after step(), got gradients that no step has taken")
        own, shared = self._zero.state()
        if self._compressed is not None:
            if not isinstance(self._compressed, SwitchMean):
                raise TorchError(
                    'bits must be 32 with through = "gloo" for a state, got 1: the baseline saves no errors'
                )
            own |= self._compressed.state(self._zero.shards)
            shared |= {"expected": own.pop("expected")} if "expected" in own else {}
            self._calls.gather(np.array([self.steps]))  # no worker begins the next step before all workers are here
        return {
            "of": OPTIMIZER,
            "workers": self._calls.workers,
            "iteration": self.steps,
            "settings": {name: getattr(self._settings, name) for name in self._structure},
            "group": {name: value for name, value in self.param_groups[0].items() if name != "params"},
            "shapes": {
                name: torch.tensor(parameter.shape, dtype=torch.int64) for name, parameter in self._parameters.items()
            },
            "untrained": {name: tensor.detach().clone() for name, tensor in self._untrained.tensors().items()},
            "shared": _tensors(shared),
            f"{WORKER}{self._calls.rank}": _tensors(own),
        }

    def load_state_dict(self, *states: State) -> None:
        """Take over a state before the first step, from state_dict()s of one step; all workers must call this method
        together.

        Each worker needs the states of the workers that takes() names. The present workers share the pending gradients
        of workers that are gone. Raise TorchError, without any change, if the model or the settings differ, or if a
        worker's state is missing.
        """
        whole, own = taken(states, OPTIMIZER, self.takes)
        untrained = self._untrained.tensors()
        check_model({name: shape.tolist() for name, shape in whole["shapes"].items()}, self._parameters)
        check_model({name: tensor.shape for name, tensor in whole.get("untrained", {}).items()}, untrained)
        for name, saved in whole["settings"].items():
            if saved != (given := getattr(self._settings, name)):
                raise TorchError(f"{name} must be {saved!r}, as in the state, got {given!r}")
        if self.steps or self._zero.missing != [*range(len(self._units))]:
            raise TorchError(f"load_state_dict() must come before the first step, got {self.steps} steps and gradients")
        arrays, shared = {rank: _arrays(state) for rank, state in own.items()}, _arrays(whole.get("shared", {}))
        merged, workers = self._merged(whole["workers"]), whole["workers"]
        self._zero.resume(whole["iteration"], workers, arrays, shared, merged)
        if isinstance(self._compressed, SwitchMean):
            alike, expected = workers == self._calls.workers, cast(Floats64 | None, shared.get("expected"))
            self._compressed.enter([arrays[rank] for rank in merged], expected, self._zero.shards, alike=alike)
        with torch.no_grad():
            for name, tensor in whole.get("untrained", {}).items():
                untrained[name].copy_(tensor)
        self.param_groups[0] = {"params": self.param_groups[0]["params"]} | whole["group"]
        if self._layers is None:
            self._gather_all()
        else:
            self._layers.begin()

    def takes(self, saved: int) -> list[int]:
        """Return the workers whose entries this worker needs, among the `saved` workers of a state."""
        return sorted({*self._zero.needs(saved), *self._merged(saved)})

    def _merged(self, saved: int) -> list[int]:
        """Return the workers whose pending gradients this worker takes over, among the `saved` workers of a state."""
        ranks = range(self._calls.rank, saved, self._calls.workers)
        return [] if self._compressed is None else [*ranks]

    @property
    def _structure(self) -> tuple[str, ...]:
        return (*STRUCTURE, "freeze_step") if self._settings.bits == 1 else STRUCTURE

    @property
    def _parameters(self) -> dict[str, nn.Parameter]:
        return {name: parameter for unit in self._units for name, parameter in unit.named}

    # -- within

    def _rate(self) -> float:
        """Return the learning rate. Raise TorchError if the group has settings that only zero() accepts."""
        (group,) = self.param_groups
        if given := sorted(group.keys() & SETTINGS):
            raise TorchError(f"{given[0]} must be given to kofn_torch.zero(), got it in the optimizer's group")
        rate = float(group["lr"])
        if not is_number(rate):
            raise TorchError(f"lr must be {NUMBER}, got {rate!r}")
        return rate

    def _overflows(self) -> bool:
        """Divide the gradient by the scale of a GradScaler, if a GradScaler makes the step; return whether a worker's
        gradient has overflowed."""
        if not hasattr(self, "found_inf"):  # GradScaler.step() sets the two attributes
            return False
        for parameter in self.param_groups[0]["params"]:
            if self.grad_scale is not None and parameter.grad is not None:
                parameter.grad.div_(self.grad_scale)
        return bool(self._calls.gather(np.array([float(self.found_inf) > 0], np.int32)).any())

    def _counted(self, unit: int, left: list[int], parameter: nn.Parameter) -> None:
        """In stage 2, count that one more parameter of a unit has its gradient."""
        left[0] -= 1
        if left[0] == 0:
            left[0] = len(self._units[unit].named)
            self._computed(unit)

    def _computed(self, unit: int) -> None:
        gradient = self._units[unit].take_gradient()
        if self._staging is None:
            self._put(unit, gradient)
        else:
            self._staging.send(unit, gradient, partial(self._put, unit))
        for name, parameter in self._units[unit].named:
            parameter.grad = DepartedGradient(parameter, name)

    def _put(self, unit: int, gradient: torch.Tensor) -> None:
        try:
            self._zero.put(unit, self._units[unit].finite(gradient))
        except ZeroError as error:
            raise TorchError(f"{error}; gradients of several batches cannot be added up in stages 2 and 3") from error

    def _fail(self, error: Exception) -> None:
        self._error = self._error or error

    def _check_whole(self) -> None:
        if self._staging is not None:
            self._staging.wait()
        if self._error is not None:
            raise self._error
        missing = self._zero.missing
        if missing:
            name = next(
                (name for name, parameter in self._units[missing[0]].named if parameter.grad is None),
                self._units[missing[0]].named[0][0],
            )
            raise TorchError(
                f"{name} must have a gradient, got none: every parameter that is trained must be in the loss, and"
                " backward() comes before step()"
            )

    def _gather(self, unit: int) -> Any:
        return self._zero.gather(unit, np.empty(self._units[unit].padded, np.float32))

    def _gather_all(self) -> Floats:
        """Give all parameters their values, and return the values."""
        arriving, found = [self._gather(at) for at in range(len(self._units))], list[Floats]()
        for unit, work in zip(self._units, arriving, strict=True):
            values = work.result()
            unit.fill(values)
            found.append(values.reshape(-1)[: unit.size])
            if self._settings.stage < 3:
                unit.seal()
        whole = np.concatenate(found)
        if self._settings.stage == 1 and not self._on_cpu:
            self._whole[...] = whole
        return whole


def _tensors(arrays: Arrays) -> dict[str, torch.Tensor]:
    return {name: torch.from_numpy(array) for name, array in arrays.items()}


def _arrays(tensors: dict[str, torch.Tensor]) -> Arrays:
    return {name: tensor.numpy() for name, tensor in tensors.items()}


def _load_first(calls: ExactCalls, untrained: UntrainedState) -> None:
    """Take worker 0's frozen parameters and buffers."""
    own = untrained.values()
    words = np.zeros(-(-own.size // 4), np.int32)
    words.view(np.uint8)[: own.size] = own
    untrained.load(calls.broadcast(words).view(np.uint8))


def _check_alike(calls: ExactCalls, digest: int, settings: ZeroSettings) -> None:
    """Raise TorchError, which names the worker, if a worker's model or settings differ."""
    told = calls.gather(np.array([digest, zlib.crc32(repr(settings).encode())], np.int64))
    for rank, (model, asked) in enumerate(told.tolist()):
        if model != told[0][0]:
            raise TorchError(
                f"worker {rank} trains another model than worker 0: names or shapes of parameters or buffers differ"
            )
        if asked != told[0][1]:
            raise TorchError(f"worker {rank} has other settings than worker 0: stage, bits and all others must agree")
