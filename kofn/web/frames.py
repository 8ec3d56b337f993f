"""The page's data: a header for the run, and a frame for every tenth of a second of a trial.

The same frames are made during a run and after it. Times in a frame are seconds since the trial's first iteration
began, in milliseconds where a name ends in `_ms`.
"""

import msgspec

from kofn_common.results.samples import SlotSample
from kofn_host.workload import Metric


class JobHeader(msgspec.Struct, frozen=True, kw_only=True):
    """One job of the run."""

    id: int
    workers: int
    collective: str
    metric: Metric | None  # the metric with the target that ends a trial; none: no metric is evaluated
    max_iterations: int
    hosts: tuple[str, ...]  # by rank
    link_mbps: tuple[float | None, ...]  # by rank, at the beginning of the run; none: not shaped
    leaves: tuple[str, ...]  # the leaves of a tree, by rack; empty: a single switch
    uplink_mbps: tuple[float | None, ...]  # by rack; none: not shaped
    faults: tuple[str, ...]  # the configured faults, as text


class RunHeader(msgspec.Struct, frozen=True, kw_only=True):
    """The constant part of the data."""

    name: str
    folder: str
    started: str
    target: str  # the switch: "embedded" or "bmv2"; empty: a simulation
    trials: tuple[str, ...]  # objectives
    jobs: tuple[JobHeader, ...]


class IterationPoint(msgspec.Struct, frozen=True, array_like=True):
    """An iteration, as seen by the worker that finished it first."""

    iteration: int
    time_s: float
    iteration_ms: float  # since the iteration before was finished
    k: int
    count: int  # gradients in the sum of the iteration's first block
    accuracy: float | None  # the metric
    loss: float | None


class Span(msgspec.Struct, frozen=True, array_like=True):
    """A worker's way through an iteration: the ends of computing, blocking, waiting for the sum, and updating."""

    iteration: int
    begin_s: float
    computed_s: float
    unblocked_s: float
    exchanged_s: float
    end_s: float
    late: bool


class WorkerFrame(msgspec.Struct, frozen=True, kw_only=True):
    """A worker's part of a frame."""

    rank: int
    iteration: int  # the latest iteration that the worker has finished
    state: str  # the worker's state by the controller, or "killed" or "not started"
    phase: str  # "computing", "blocked", "waiting", "updating"; empty: between iterations, or unknown
    late: int  # gradients so far that were late
    late_share: float  # share of late gradients among the worker's latest 50 gradients, 0 to 1
    share: float  # the worker's share of the gradients in all sums so far, 0 to 1
    link: str  # its slow link in words; empty: the link is not slow
    lambda_ms: float | None  # estimated mean blocking time, and the ends of its 95 % interval; none: unknown
    low_ms: float | None
    high_ms: float | None
    injected_ms: float | None  # injected mean blocking time
    sent_bytes: int  # over the worker's link to the switch, so far
    received_bytes: int  # over the worker's link from the switch, so far
    sent_mbps: float  # between the latest two samples
    received_mbps: float
    spans: tuple[Span, ...]  # that ended in this frame, the latest 64 at most


class EventFrame(msgspec.Struct, frozen=True, kw_only=True):
    """An event."""

    time_s: float
    iteration: int
    kind: str  # "k", "event", "straggler", "fault", "worker" or "controller"
    words: str


class Frame(msgspec.Struct, frozen=True, kw_only=True):
    """A job of a trial at a time."""

    trial: int  # number of the trial, from 0 on
    job: int
    time_s: float
    iteration: int
    k: int
    objective: str
    late_gradient: str
    accuracy: float | None  # the latest known value
    loss: float | None  # the latest known value
    iteration_ms: float | None  # mean of the latest 20 iterations
    predicted_ms: float | None  # the controller's prediction of the iteration time with this k
    waiting: str  # the reason why the job does not move, if it does not
    packets: dict[str, int]  # by verdict of the switch, so far; verdicts without packets are left out
    points: tuple[IterationPoint, ...]  # iterations finished in this frame, 64 at most
    workers: tuple[WorkerFrame, ...]
    uplinks: tuple[tuple[float, float], ...]  # Mbit/s to the root and from the root, by rack
    slots: tuple[SlotSample, ...] | None  # the latest sample; none: not sampled
    events: tuple[EventFrame, ...]  # events since the previous frame
