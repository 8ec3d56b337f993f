"""Training that sends gradients while they are computed, and whose forward pass waits layer by layer for means.

An iteration is a forward pass, the loss, and a backward pass.  In the forward pass each layer waits for the mean of its
gradients of the previous iteration; then the layer's parameters are updated.  The backward pass follows the schedule's
order; a piece leaves as soon as its layers are computed.  A separate thread waits for the iteration's end.
"""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from typing import Any, Literal, TypeVar

import numpy as np

from kofn_common import wall_clock
from kofn_common.collectives.job_collective import load_collective
from kofn_common.config.errors import ConfigError
from kofn_common.config.schedule import AUTO
from kofn_common.config.schema import Config
from kofn_host.agent.exchange import Contribution, Exchange, Update
from kofn_host.agent.gradient_stream import GradientStream
from kofn_host.arrays import Floats, Integers
from kofn_host.compression.aggregate import Aggregate
from kofn_host.compression.job_coding import JobCoding
from kofn_host.compression.side_values import NOTHING, SideValues
from kofn_host.errors import HostError
from kofn_host.kernels.sample import norm2
from kofn_host.schedule.agreed_search import AgreedSearch
from kofn_host.schedule.families import PassSchedule
from kofn_host.schedule.layers import LayerTimes
from kofn_host.schedule.pieces import Piece, partition
from kofn_host.schedule.pipeline import LinkModel, leaving_order
from kofn_host.schedule.search import Enumeration, GivenSchedule, Measured, Proposals, Search
from kofn_host.schedule.wire_layout import WireLayout
from kofn_host.stopwatch import UNMEASURED
from kofn_host.training.loop import Step, Training, Work
from kofn_host.training.metrics import Metrics
from kofn_host.training.reducer import Reducer
from kofn_host.workload.layered import LayeredModel, LayeredWorkload
from kofn_host.workload.optimizer import Optimizer
from kofn_host.workload.replica import ReplicaState
from kofn_host.workload.workloads.accelerator import times_of

T = TypeVar("T")

Kind = Literal["forward", "error", "weight", "wait", "transfer"]

PASSES: tuple[Kind, ...] = ("forward", "error", "weight")


def check_schedule(config: Config) -> None:
    """Raise ConfigError if the configuration's schedule needs another collective, workload or optimizer."""
    section, collective = config.schedule, config.job.collective
    if config.model.workload_name == "script":
        return  # kofn_torch.schedule() checks the script's model
    if not load_collective(collective).ledger:
        raise ConfigError(
            f"schedule.family {section.family!r} needs a switch or a server, got job.collective {collective!r}"
        )
    training = OverlappedTraining(config, 0)
    optimizer = type(training.replica.optimizer)
    if optimizer.step_part is Optimizer.step_part:
        raise ConfigError(
            f"schedule.family {section.family!r} needs an optimizer with step_part(), got {optimizer.__name__}"
        )


class ReplacedError(HostError):
    """A peer's replica has replaced an iteration's mean."""


class Reduction:
    """One iteration's reduction, whose gradient is put in pieces; a thread waits for the iteration's end."""

    def __init__(
        self, reducer: Reducer, iteration: int, layout: WireLayout, block_elements: int, note: SideValues
    ) -> None:
        self.stream = GradientStream(np.zeros(layout.elements, np.float32), block_elements)
        for begin, end in layout.padding():
            self.stream.pieces.put(begin, np.zeros(end - begin, np.float32))
        self._reducer, self._layout, self._size = reducer, layout, block_elements
        self._given = Contribution(begun=iteration, stream=self.stream, note=note)
        self._put_s: dict[int, float] = {}
        self._ended: Future[Exchange] = Future()
        self._thread = threading.Thread(target=self._reduce, name="kofn-reduction", daemon=True)
        self._thread.start()

    def transfers(self) -> Iterator[tuple[int, float, float]]:
        """Yield each layer whose mean is complete, with two times in seconds of time.monotonic().

        The first time is when the layer's first piece was put, the second when the result of the layer's last block
        came.
        """
        if (closed_s := self.stream.closed_s) is None:
            return
        for layer, put_s in self._put_s.items():
            places = (place for place, _ in self._layout.places(layer))
            end_s = max(closed_s[place.start // self._size : -(-place.stop // self._size)].max() for place in places)
            if not np.isnan(end_s):
                yield layer, put_s, float(end_s)

    def put(self, piece: Piece, gradient: Floats) -> None:
        """Put a piece of `gradient`, which has the shape of the parameters."""
        for layer in piece.layers:
            self._put_s.setdefault(layer, time.monotonic())
        for layer, (begin, end) in zip(piece.layers, piece.ranges, strict=True):
            for place, elements in self._layout.places(layer, begin, end):
                self.stream.pieces.prioritise(place.start, place.stop, piece.level)
                self.stream.pieces.put(place.start, gradient[elements])

    def mean(self, layer: int) -> Floats:
        """Wait for a layer's mean and return it."""
        return self._layout.layer(layer, self.stream.wait)

    def result(self) -> Exchange:
        """Wait for the iteration's end and return the outcome."""
        return self._ended.result()

    def _reduce(self) -> None:
        try:
            exchange = self._reducer.all_reduce(self._given)
            if isinstance(exchange.updates[0], ReplicaState):
                self.stream.fail(ReplacedError())
            self._ended.set_result(exchange)
        except BaseException as error:  # passed on to the calling thread
            self.stream.fail(error)
            self._ended.set_exception(error)


class OverlappedTraining(Training):
    """Training of a layered model by a schedule, which a search may change from iteration to iteration."""

    def __init__(self, config: Config, rank: int) -> None:
        super().__init__(config, rank)
        self._forwarded: int | None = None
        """The iteration whose forward pass was made with the current parameters."""
        self._measured: Measured | None = None  # the times of the latest iteration

    @property
    def _layered(self) -> LayeredWorkload:
        if isinstance(self._workload, LayeredWorkload):
            return self._workload
        raise ConfigError(
            f"schedule.family {self._config.schedule.family!r} needs a workload derived from LayeredWorkload,"
            f" got model.workload {self._config.model.workload_name!r}"
        )

    @property
    def _model(self) -> LayeredModel:
        return self._layered.model

    def _new_search(self) -> Search:
        """Return the configured search in its initial state."""
        section, layers = self._config.schedule, self._model.layers
        if section.front > len(layers):
            raise ConfigError(f"schedule.front must be 0 to {len(layers)}, the number of layers, got {section.front}")
        first = PassSchedule(
            "late-front" if section.family == AUTO else str(section.family), section.threshold, section.front
        )
        if section.family == AUTO:
            link = LinkModel.of(self._config.pace_mbps(), self.coding.layout, self._config.job.window)
            return Proposals(layers, first, link)
        return (
            Enumeration(len(layers) if first.family.has_front else 0, first, layers)
            if section.enumerate
            else GivenSchedule(first)
        )

    def _code(self, config: Config) -> JobCoding:
        block_elements = JobCoding.of(config.job, config.compress, 1).layout.elements
        self._layout = WireLayout(self._model.layers, block_elements, self._order(config))
        return JobCoding.of(
            config.job, config.compress, self._layout.elements, notes=config.schedule.searches, follows=True
        )

    def _order(self, config: Config) -> list[int] | None:
        """Return the expected order in which layers leave; None if all blocks fit into the window: no order matters."""
        coding = JobCoding.of(config.job, config.compress, self._model.layers[-1].end)
        if coding.layout.blocks <= config.job.window:
            return None
        section, link = config.schedule, LinkModel.of(config.pace_mbps(), coding.layout, config.job.window)
        family = "priority" if section.family == AUTO else str(section.family)
        times = times_of(config.layer) if config.layer else link.as_slow(self._model.layers)
        expected = PassSchedule(family, section.threshold, min(section.front, len(self._model.layers)))
        return leaving_order(self._model.layers, times, expected, link, coding.layout.elements)

    def _alike(self) -> dict[str, Integers]:
        self._search = AgreedSearch(self._new_search)
        return {"schedule_search": self._search.heard}

    def _apply(self, aggregate: Aggregate, step: Step | None) -> tuple[dict[str, Any], str | None]:
        applied = super()._apply(aggregate, step)
        self._search.hear(aggregate.notes.values(), aggregate.k)
        return applied

    def _mean(self, aggregate: Aggregate) -> Floats:
        return self._layout.parameters(aggregate.mean)

    def _iterate(self, reducer: Reducer, metrics: Metrics, ready: float) -> tuple[Step, list[Update], str | None]:
        """Run from an iteration's loss to the next iteration's loss."""
        if reducer.entered:  # this iteration's gradient was computed before a restart
            self._forwarded = None
            return super()._iterate(reducer, metrics, ready)
        iteration, started, begun_s = reducer.iteration, wall_clock.now(), self._free_s()
        self._timeline = list[tuple[Kind, int, float, float]]()
        self._schedule = self._search.schedule
        if self._forwarded != iteration:
            self._forward(iteration)
        reduction, work, first_s = self._backward(reducer, iteration, ready)
        if reduction is not None:
            self._forward(iteration + 1, reduction)
        self._clock.computed()
        exchange = Exchange(handed_s=None, ended=reducer.skip()) if reduction is None else reduction.result()
        self._clock.exchanged(UNMEASURED)
        self._attempts.tried(in_time=reduction is not None and not exchange.late)
        if reduction is not None:
            self._timeline += [("transfer", *transfer) for transfer in reduction.transfers()]
        self._measured = Measured(iteration_s=self._free_s() - begun_s - work.blocked_s, times=self._layer_times())
        step = Step(
            iteration=iteration,
            started=started,
            first_block_s=first_s - ready,
            work=work,
            age=exchange.age,
            account=reducer.account(),
            link=reducer.link.report(),
            schedule=str(self._schedule),
            timeline=[
                (what, self._model.layers[layer].name, round(begin_s - ready, 6), round(end_s - ready, 6))
                for what, layer, begin_s, end_s in self._timeline
            ],
        )
        updates = exchange.updates
        reason = self._apply_all(updates, step, metrics)
        alone = len(updates) == 1 and isinstance(updates[0], Aggregate)
        self._forwarded = iteration + 1 if reduction is not None and alone else None
        return step, updates, reason

    def _forward(self, iteration: int, reduction: Reduction | None = None) -> None:
        """Run the forward pass; with a reduction, update each layer by its mean before the layer's turn."""
        self._layered.begin(iteration)
        if reduction is not None and not self._schedule.family.by_layer:
            self._wait(0, reduction.result)
        for number, layer in enumerate(self._model.layers):
            if reduction is not None:
                try:
                    mean = self._wait(number, partial(reduction.mean, number))
                except ReplacedError:
                    return
                self.replica.step_part(layer.begin, layer.end, mean)
            self._timed("forward", number, iteration, partial(self._model.forward, number))

    def _backward(self, reducer: Reducer, iteration: int, ready: float) -> tuple[Reduction | None, Work, float]:
        """Run the backward pass; return its reduction (None if aborted), its work, and the time of the first piece."""
        loss = self._model.loss()
        blocking_s = self._blocking.blocking_s(iteration, 0, ready - self._begun_s)
        paused_s = self._free_s() if blocking_s else time.monotonic()
        aborted = self._pause(reducer, max(0.0, paused_s + blocking_s - time.monotonic()))
        paused_s = max(0.0, time.monotonic() - paused_s)
        work = Work(
            loss=loss,
            gradient=None,
            norm2=0.0,
            agreement=0.0,
            blocking_s=blocking_s,
            blocked_s=paused_s,
            aborted=aborted,
        )
        if aborted:
            return None, replace(work, blocked_s=max(paused_s, blocking_s)), time.monotonic()
        note = NOTHING if self._measured is None else self._search.said(self._measured)
        reduction = Reduction(reducer, iteration, self._layout, self.coding.layout.elements, note)
        layers = self._model.layers
        gradient, waiting = np.empty(self.parameters, np.float32), partition(layers, self._schedule)
        computed, first_s = set[int](), 0.0
        order = self._schedule.order(len(layers))
        self._model.expect(order)
        for step in order:
            self._timed(step.kind, step.layer, iteration, partial(self._model.step, step, gradient))
            if step.kind == "weight":
                computed.add(step.layer)
            while self._schedule.family.overlaps and waiting and computed.issuperset(waiting[0].layers):
                first_s = first_s or time.monotonic()
                reduction.put(waiting.pop(0), gradient)
        agreement = self._alignment.agreement(gradient)
        first_s = first_s or time.monotonic()
        for piece in waiting:
            reduction.put(piece, gradient)
        return reduction, replace(work, gradient=gradient, norm2=norm2(gradient), agreement=agreement), first_s

    def _timed(self, kind: Kind, layer: int, iteration: int, compute: Callable[[], None]) -> None:
        """Compute one step of a pass; take at least the step's share of model.compute_ms."""
        asked_s = time.monotonic()
        compute()
        begun_s, end_s = self._model.span_s or (asked_s, time.monotonic())
        if least_s := self._share(kind, layer) * self._blocking.compute_s(iteration):
            end_s = max(end_s, begun_s + least_s)
            time.sleep(max(0.0, end_s - time.monotonic()))
        self._timeline.append((kind, layer, begun_s, end_s))

    def _free_s(self) -> float:
        """Return the time, now or later, at which the device will have finished all submitted passes."""
        return max(time.monotonic(), self._model.span_s[1] if self._model.span_s else 0.0)

    def _layer_times(self) -> LayerTimes:
        """Return the layers' times in the iteration."""
        spent_s = {(kind, layer): end_s - begin_s for kind, layer, begin_s, end_s in self._timeline}
        layers = range(len(self._model.layers))
        return LayerTimes(*([spent_s.get((kind, layer), 0.0) for layer in layers] for kind in PASSES))

    def _share(self, kind: Kind, layer: int) -> float:
        """Return this step's share of an iteration's computation, by the layers' numbers of parameters."""
        sizes = [each_layer.elements for each_layer in self._model.layers]
        return 0.0 if (kind, layer) == ("error", 0) else sizes[layer] / (3 * sum(sizes) - sizes[0])

    def _wait(self, layer: int, wait: Callable[[], T]) -> T:
        """Wait for the input of a layer's pass; the timeline's entry begins when the previous passes have ended."""
        free_s = self._free_s()
        self._clock.computed()
        try:
            return wait()
        finally:
            self._clock.exchanged(UNMEASURED)
            end_s = time.monotonic()
            self._timeline.append(("wait", layer, min(free_s, end_s), end_s))
