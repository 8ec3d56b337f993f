"""A training by a schedule: gradients are sent layer by layer, and a layer's forward pass waits for its own mean only.

A flag of each layer says whether its parameters are those of the latest iteration. If they are not, the layer's forward
pass waits for the layer's mean, and steps the layer's parameters. At its begin, the model's forward pass does the same
for the layers that have never had a forward pass of their own.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import numpy as np
import torch
from torch import nn

from kofn_common.collectives.job_collective import load_collective
from kofn_common.config.schedule import AUTO
from kofn_host.arrays import Floats
from kofn_host.schedule import FAMILIES, Layer, PassSchedule, Piece, WireLayout, partition
from kofn_host.training import JobCoding, Step, Update
from kofn_torch.early_reads import EarlyReads
from kofn_torch.elastic import check_optimizer, epoch_of
from kofn_torch.errors import TorchError
from kofn_torch.exchange import GradientExchange
from kofn_torch.hyperparameters import Hyperparameters
from kofn_torch.job import TorchJob
from kofn_torch.layout import ParameterLayout
from kofn_torch.own_hook import OwnHook
from kofn_torch.session import Session
from kofn_torch.split import SplitBackward, TorchLayer, layers_of

T = TypeVar("T")


class LayeredLayout(ParameterLayout):
    """A layout layer by layer, the last layer first. Each layer begins with a block; zeros fill the gaps between
    layers."""

    def __init__(self, module: nn.Module, layers: Sequence[TorchLayer], block_elements: int) -> None:
        super().__init__(module)
        self.layers, at = list[Layer](), 0
        for layer in layers:
            end = at + sum(parameter.numel() for parameter in layer.parameters)
            self.layers.append(Layer(layer.name, at, end))
            at = end
        self.wire = WireLayout(self.layers, block_elements)
        for number, layer in enumerate(layers):
            ((place, _),) = self.wire.places(number)
            begin = place.start
            for parameter in layer.parameters:
                self._places[id(parameter)] = begin, begin + parameter.numel()
                begin += parameter.numel()
        self.elements = self.wire.elements


def schedule_of(job: TorchJob, layers: int, *, clips: bool) -> PassSchedule:
    """Return the schedule of [schedule]. Raise TorchError if the job, the number of layers or clipping does not permit
    it."""
    section, collective = job.config.schedule, job.config.job.collective
    if section.family is None:
        raise TorchError(f"schedule.family must be one of {', '.join(FAMILIES)}, got none")
    if section.searches:
        raise TorchError(
            f"schedule.family must name a family, got {AUTO!r} or schedule.enumerate: kofn_torch.schedule() does not"
            " search for a schedule"
        )
    if collective == "gloo" or not load_collective(collective).ledger:
        raise TorchError(f"job.collective must be a switch or a server for a schedule, got {collective!r}")
    if section.front > layers:
        raise TorchError(f"schedule.front must be 0 to {layers}, all of the model's layers, got {section.front}")
    found = PassSchedule(section.family, section.threshold, section.front)
    if clips and found.family.by_layer:
        whole = ", ".join(name for name, family in FAMILIES.items() if not family.by_layer)
        raise TorchError(
            f"schedule.family must be one of {whole} with max_norm, which is the norm of all layers together, got"
            f" {found.name}, which steps layer by layer"
        )
    return found


class ScheduledSession(Session):
    """The session that kofn_torch.schedule() makes."""

    _exchange: GradientExchange

    def __init__(
        self,
        module: nn.Module,
        optimizer: torch.optim.Optimizer,
        scheduler: Any,
        job: TorchJob,
        max_norm: float | None,
    ) -> None:
        check_optimizer(module, optimizer, scheduler)
        self._layers = layers_of(module)
        self._schedule = schedule_of(job, len(self._layers), clips=max_norm is not None)
        block_elements = JobCoding.of(job.config.job, job.config.compress, 1).layout.elements
        self._by_layer = LayeredLayout(module, self._layers, block_elements)
        model: Any = _Undistributed(module)
        super().__init__(model, job, self._by_layer)
        self._optimizer, self._scheduler, self._max_norm = optimizer, scheduler, max_norm
        self._epoch = epoch_of(scheduler)
        self._rates = Hyperparameters(optimizer)
        self._stepping = False
        self._seen = set[int]()  # layers that have had a forward pass of their own
        self._stepped = set[int](range(len(self._layers)))
        self._versions = dict[int, int]()  # of gradients at the end of backward(), by the parameter's id()
        self._waiting, self._computed = list[Piece](), set[int]()
        self._timeline = list[tuple[str, str, float, float]]()

    # -- for the user

    def backward(self, loss: torch.Tensor) -> None:
        """Compute the loss's gradients, and send them as the schedule says. The layers' next forward passes wait for
        the means."""
        self.loss = loss
        self._untrained.check_trained()
        if self._begun is None:
            self._early.check(loss)
        self.finish()
        self._begin()
        self._timeline = []
        for begin, end in self._by_layer.wire.padding():
            self._exchange.put(begin, torch.zeros(end - begin), 0)
        self._waiting, self._computed = partition(self._by_layer.layers, self._schedule), set()
        order = self._schedule.order(len(self._layers))
        last_error = max((at for at, step in enumerate(order) if step.kind == "error"), default=-1)
        self._split.backward(loss, [step.layer for step in order[last_error + 1 :]])
        for at in set(range(len(self._layers))) - self._computed:
            self._layer_computed(at)
        self._put_pieces(self._waiting)
        self._waiting = []
        self._versions = {
            id(parameter): parameter.grad._version
            for parameter in self.layout.parameters.values()
            if parameter.grad is not None
        }
        self._rates.keep()
        self._stepped.clear()
        if self.iteration + 1 >= self._last:
            self.finish()

    def finish(self) -> None:
        """Wait until all parameters are those of the latest iteration."""
        self.check()
        if self._ended is None:
            return
        if self._schedule.family.by_layer:
            for at in range(len(self._layers)):
                self._take(at)
        else:
            self._take_all()
        self._settle()
        if self._scheduler is not None:
            if epoch_of(self._scheduler) != self._epoch:
                raise TorchError("the scheduler must not be stepped: schedule() steps it after every iteration")
            self._scheduler.step()
            self._epoch = epoch_of(self._scheduler)

    def _end_iteration(self) -> None:
        self.finish()

    def close(self) -> None:
        if not self._closed and self._error is None and self._whole:
            self.finish()
        super().close()
        self._split.close()

    # -- the model's passes

    def _follow_model(self) -> None:
        self._split = SplitBackward(self._layers, self._layer_computed, self._timed)
        module: nn.Module = self.model.module
        self._early = EarlyReads(self._layers)
        finish = OwnHook(self._state_is_read)
        self._hooks = [
            module.register_forward_pre_hook(OwnHook(self._forward_begins), prepend=True),
            module.register_forward_hook(OwnHook(lambda *_: self._early.end()), always_call=True),
            module.register_state_dict_pre_hook(finish),
            module.register_load_state_dict_pre_hook(finish),
            self._optimizer.register_state_dict_pre_hook(finish),
            self._optimizer.register_load_state_dict_pre_hook(finish),
            self._optimizer.register_step_pre_hook(self._step_begins),
        ]
        for at, layer in enumerate(self._layers):
            begins = OwnHook(partial(self._layer_begins, at))
            self._hooks.append(layer.module.register_forward_pre_hook(begins, prepend=True))

    def _state_is_read(self, *_: Any) -> None:
        """Finish the latest iteration before the state of model or optimizer is read or written."""
        if self._error is None:
            self.finish()

    def _step_begins(self, *_: Any) -> None:
        if not self._stepping:
            raise TorchError("step() must not be called: schedule() steps each layer before the layer's forward pass")

    def _forward_begins(self, module: nn.Module, given: Any) -> None:
        self.check()
        self._early.begin()
        if self._ended is None:
            return
        if not self._schedule.family.by_layer:
            self._take_all()
        for at in set(range(len(self._layers))) - self._seen:
            self._take(at)

    def _layer_begins(self, at: int, module: nn.Module, given: Any) -> None:
        self._early.call(at)
        self._seen.add(at)
        self._take(at)

    def _layer_computed(self, at: int) -> None:
        """Send a layer's gradient, which has been computed; parameters without a gradient send zeros."""
        self._computed.add(at)
        if not self._schedule.family.overlaps:
            return
        ready = [piece for piece in self._waiting if self._computed.issuperset(piece.layers)]
        self._waiting = [piece for piece in self._waiting if piece not in ready]
        self._put_pieces(ready)

    def _put_pieces(self, pieces: Sequence[Piece]) -> None:
        parts = dict[int, list[tuple[int, slice, int]]]()  # by layer: place in the gradient, place in the layer, level
        for piece in pieces:
            for at, (begin, end) in zip(piece.layers, piece.ranges, strict=True):
                first = self._by_layer.layers[at].begin
                for place, of in self._by_layer.wire.places(at, begin, end):
                    part = place.start, slice(of.start - first, of.stop - first), piece.level
                    parts.setdefault(at, []).append(part)
        for at, layer_parts in parts.items():
            flat = torch.cat([_gradient(parameter).reshape(-1).float() for parameter in self._layers[at].parameters])
            if self._staging is None:
                self._put_layer(layer_parts, flat)
            else:
                self._staging.send(at, flat, partial(self._put_layer, layer_parts))

    def _put_layer(self, parts: Sequence[tuple[int, slice, int]], flat: torch.Tensor) -> None:
        for begin, of, level in parts:
            self._exchange.put(begin, flat[of], level)

    # -- the optimizer's steps

    def _take(self, at: int) -> None:
        """Step a layer's parameters to the latest iteration."""
        if self._ended is None or at in self._stepped:
            return
        mean = self._waited(at, lambda: self._by_layer.wire.layer(at, self._exchange.wait))
        self._stepped.add(at)
        self._step({at: mean})

    def _take_all(self) -> None:
        left = set(range(len(self._layers))) - self._stepped
        if self._ended is None or not left:
            return
        mean = self._waited(0, lambda: self._exchange.wait(0, self._by_layer.elements))
        self._stepped |= left
        self._step({at: self._by_layer.wire.layer(at, lambda begin, end: mean[begin:end]) for at in left})

    def _step(self, means: dict[int, Floats]) -> None:
        """Step these layers by the user's optimizer; the parameters of all other layers have no gradient meanwhile."""
        kept = [(parameter, parameter.grad) for layer in self._layers for parameter in layer.parameters]
        for parameter, gradient in kept:
            known = gradient is None or gradient._version == self._versions.get(id(parameter), gradient._version)
            if not known and gradient.any():  # zero_grad() may change a gradient
                raise TorchError(
                    "a gradient must not be changed after backward(), as by clipping or a GradScaler, because it was"
                    " sent already; schedule(max_norm=...) clips the means, with a family that waits for all means"
                )
            parameter.grad = None
        for at, mean in means.items():
            begin, flat = 0, torch.from_numpy(np.ascontiguousarray(mean))
            if self._staging is not None:
                flat = self._staging.receive(("mean", at), flat)
            for parameter in self._layers[at].parameters:
                parameter.grad = flat[begin : begin + parameter.numel()].view_as(parameter).to(parameter.dtype)
                begin += parameter.numel()
        if self._max_norm is not None:
            nn.utils.clip_grad_norm_(list(self.layout.parameters.values()), self._max_norm)
        self._stepping = True
        try:
            with self._rates.kept():
                self._optimizer.step()
        finally:
            self._stepping = False
        stepped = {id(parameter) for at in means for parameter in self._layers[at].parameters}
        for parameter, gradient in kept:
            if id(parameter) in stepped:
                self._versions.pop(id(parameter), None)  # from now on the parameter's gradient is the mean
            else:
                parameter.grad = gradient

    # -- records of an iteration

    def ended(self) -> tuple[Step, Sequence[Update]]:
        step, updates = super().ended()
        begin_s = self._begun.ready_s if self._begun else 0.0
        entries = [
            (what, name, round(at - begin_s, 6), round(end - begin_s, 6)) for what, name, at, end in self._timeline
        ]
        return replace(step, schedule=str(self._schedule), timeline=entries), updates

    def _timed(self, what: str, at: int, began_s: float) -> None:
        self._timeline.append((what, self._layers[at].name, began_s, time.monotonic()))

    def _waited(self, at: int, wait: Callable[[], T]) -> T:
        began_s = time.monotonic()
        try:
            return wait()
        finally:
            self._timed("wait", at, began_s)


class _Undistributed:
    """A model without DistributedDataParallel, with the attributes that a Session needs."""

    process_group = None

    def __init__(self, module: nn.Module) -> None:
        self.module = module


def _gradient(parameter: nn.Parameter) -> torch.Tensor:
    return torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
