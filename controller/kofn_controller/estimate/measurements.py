"""Measurements of each worker: its reports and its silence. Bounded memory; no clock, no I/O.

A report gives the first-block time T_i of an iteration, or a lower bound of it if the iteration ended first. A worker
that is silent while others continue gives a lower bound as well: the time since it began. Bad input is refused and
counted, and logged once for each worker and reason.
"""

import logging
import math
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from kofn_common.results.account import Account
from kofn_common.rpc import kofn_pb2 as pb
from kofn_common.wire.sizes import PARTS, WEIGHT_MAX, WEIGHT_UNIT
from kofn_controller.estimate.reports import Flags, Numbers, Ranks, Reports
from kofn_controller.estimate.views import SwitchDigest, Views

_LOG = logging.getLogger(__name__)

FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]

Scalar = TypeVar("Scalar", bound=np.generic)

AHEAD_MAX = 1000
"""Maximum number of iterations by which a report may be ahead of all earlier reports. The fastest k workers continue
without the others, but do not get that far ahead."""

GRACE_S = 0.020
"""A worker counts as silent once other workers have been ahead of this worker for this time: until then its message may
be on its way."""

LINK_WAITS = 7
"""Number of kept link waits of each worker."""

FRONTS_KEPT = 64
"""Number of latest iterations for which the time of the first worker is kept."""

FIRST_BLOCK_MAX_S = 3600.0
"""Maximum first-block time of a report that is accepted."""

LINK_MBPS_MAX = 1e7
"""Largest accepted rate of a slow link."""

NORM2_MAX = 1e100
"""Maximum sum of squares, or product, of a report that is accepted: float32 values have no larger sums or products."""

LIMITS = {
    "first_block_s": ("time", FIRST_BLOCK_MAX_S),
    "catch_up_s": ("time", FIRST_BLOCK_MAX_S),
    "link_wait_s": ("time", FIRST_BLOCK_MAX_S),
    "link_backlog_s": ("time", FIRST_BLOCK_MAX_S),
    "link_mbps": ("rate", LINK_MBPS_MAX),
    "gradient_norm2": ("norm", NORM2_MAX),
    "aggregate_norm2": ("norm", NORM2_MAX),
}
"""For each number of a report that is 0 or more: the kind of fault, and the largest accepted value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """A worker's first block at its slot, as the switch saw it (arrival_t of p4src/metadata.p4)."""

    worker: int
    iteration: int
    verdict: str
    timestamp_us: int
    rack: int = 0  # the rack of the leaf whose clock gives the time


@dataclass(frozen=True, slots=True, kw_only=True)
class Track:
    """Counts and latest facts of one worker."""

    reported: int  # the latest iteration that the worker reported
    reached: int  # the latest iteration of which the worker has finished at least the first block
    arrivals: int
    late: int
    late_in_a_row: int
    last_first_block_s: float
    account: Account
    unheard: int  # the number of the worker's latest gradients that are in no sum
    link_mbps: float  # rate of the worker's slow link; 0: it is not slow
    link_backlog_s: float  # how long the packets wait that a slow link holds


@dataclass(slots=True, kw_only=True)
class Measurements:
    """The latest `window` first-block times of each of `workers` workers."""

    workers: int
    window: int
    reports: NDArray[np.int64] = field(init=False)  # (workers,) number of accepted reports
    reached: NDArray[np.int64] = field(init=False)  # (workers,) the latest iteration of a report or arrival
    late_in_a_row: NDArray[np.int64] = field(init=False)  # (workers,)
    views: Views = field(init=False)
    link_waits_s: FloatArray = field(init=False)  # (workers, LINK_WAITS) waits of gradients' last packets, oldest first
    link_waits_unsure: BoolArray = field(init=False)  # (workers, LINK_WAITS) whether the packet may have been lost
    iteration: int = 0  # the latest iteration that any worker reported
    refused: int = 0
    _front: int = 0  # the latest iteration that any worker reached
    _times_s: FloatArray = field(init=False)  # (window, workers), like the next two; a ring for each worker
    _cut: BoolArray = field(init=False)
    _iterations: NDArray[np.int64] = field(init=False)
    _reported: NDArray[np.int64] = field(init=False)  # (workers,), like the next four
    _arrived: NDArray[np.int64] = field(init=False)
    _arrivals: NDArray[np.int64] = field(init=False)
    _late: NDArray[np.int64] = field(init=False)
    _last_s: FloatArray = field(init=False)
    _accounts: dict[int, Account] = field(init=False, default_factory=dict)  # by rank
    _unheard: dict[int, int] = field(init=False, default_factory=dict)
    _links: dict[int, tuple[float, float]] = field(init=False, default_factory=dict)  # rates and backlogs
    _began_s: FloatArray = field(
        init=False
    )  # (workers,) last sign of life: the next iteration began no earlier; NaN: none
    _first_s: dict[int, float] = field(init=False, default_factory=dict)  # by iteration: when a worker first reached it
    _logged: set[tuple[int, str]] = field(init=False, default_factory=set)

    def __post_init__(self) -> None:
        self._times_s = np.full((self.window, self.workers), np.nan)
        self._cut = np.zeros((self.window, self.workers), dtype=np.bool_)
        self._iterations = np.zeros((self.window, self.workers), dtype=np.int64)
        self.link_waits_s = np.full((self.workers, LINK_WAITS), np.nan)
        self.link_waits_unsure = np.zeros((self.workers, LINK_WAITS), np.bool_)
        self.reports, self.reached, self.late_in_a_row = np.zeros((3, self.workers), np.int64)
        self._reported, self._arrived, self._arrivals, self._late = np.zeros((4, self.workers), np.int64)
        self._last_s = np.zeros(self.workers)
        self._began_s = np.full(self.workers, np.nan)
        self.views = Views(workers=self.workers)

    def begin(self, now_s: float) -> None:
        """Note that all workers begin now."""
        self._began_s[:] = now_s

    def join(self, rank: int, now_s: float, iteration: int = 0) -> None:
        """Note that a worker begins now, in this iteration of a running job: earlier silence and lateness do not
        count."""
        self._began_s[rank], self.late_in_a_row[rank] = now_s, 0
        if not self._front:  # this controller has seen no iteration of the job, so accept reports of this iteration
            self._front = self.iteration = max(iteration - 1, 0)
            self._first_s[self._front] = now_s

    def report(self, rank: int, report: pb.Report, now_s: float) -> bool:
        """Take a report; return False if it was refused."""
        if fault := self._fault(rank, report.iteration) or self._report_fault(rank, report):
            return self._refuse(rank, "report", *fault)
        self._push(rank, report.iteration, report.first_block_s, censored=report.censored, late=report.late)
        if report.HasField("link_wait_s"):
            self._push_wait(rank, report.link_wait_s, unsure=report.link_wait_unsure)
            self._links[rank] = report.link_mbps, report.link_backlog_s
        self._has_reached(rank, report.iteration, now_s)
        if (account := account_of(report)) is not None:
            heard = account.summed > self._accounts.get(rank, Account()).summed
            self._unheard[rank] = 0 if heard else self._unheard.get(rank, 0) + 1
            self._accounts[rank] = account
        self.iteration = max(self.iteration, report.iteration)
        self.views.report(
            rank,
            report.iteration,
            first_block_s=report.first_block_s,
            sent=not report.censored,
            late=report.late,
        )
        return True

    def take(self, reports: Reports) -> None:
        """Take the reports of several workers. They must be valid, and no digest may accompany them (`views`)."""
        self._push(reports.rank, reports.iteration, reports.first_block_s, censored=reports.censored, late=reports.late)
        if reports.link_wait_s is not None:
            self._push_wait(reports.rank, reports.link_wait_s)
        self._has_reached(reports.rank, reports.iteration, reports.now_s)
        self.iteration = max(self.iteration, int(reports.iteration.max(initial=0)))

    def arrival(self, arrival: Arrival, now_s: float) -> bool:
        """Take an arrival from a digest; return False if it was refused. Retransmitted blocks change nothing."""
        if fault := self._fault(arrival.worker, arrival.iteration):
            return self._refuse(arrival.worker, "digest", *fault)
        if arrival.iteration > self._arrived[arrival.worker]:
            self._arrivals[arrival.worker] += 1
            self._arrived[arrival.worker] = arrival.iteration
            self._has_reached(arrival.worker, arrival.iteration, now_s)
            self.views.arrival(
                arrival.worker,
                arrival.iteration,
                SwitchDigest(verdict=arrival.verdict, timestamp_us=arrival.timestamp_us, rack=arrival.rack),
            )
        return True

    @property
    def shares(self) -> FloatArray:
        """Each worker's share of the gradients in all sums so far (workers,); 0 while unknown."""
        summed = np.zeros(self.workers)
        for rank, account in self._accounts.items():
            summed[rank] = account.summed
        return np.asarray(summed / max(float(summed.sum()), 1e-300))

    def silent_s(self, now_s: float) -> FloatArray:
        """Return the time since each worker began (workers,) if others have continued without it, else 0.

        This time is a lower bound (right-censored) of the worker's first-block time. It shows that a worker has become
        slow before the worker reports this.
        """
        behind = np.flatnonzero((self.reached < self._front) & ~np.isnan(self._began_s))
        silent_s = np.zeros(self.workers)
        if behind.size:
            iterations, firsts_s = np.array(list(self._first_s)), np.array(list(self._first_s.values()))
            passed_s = firsts_s[np.searchsorted(iterations, self.reached[behind], side="right")]
            since_s = np.maximum(now_s - self._began_s[behind], 0.0)
            silent_s[behind] = np.where(now_s - passed_s >= GRACE_S, since_s, 0.0)
        return silent_s

    @property
    def times_s(self) -> FloatArray:
        """First-block times (workers, window), oldest first; NaN: no measurement."""
        return self._in_order(self._times_s)

    @property
    def cut(self) -> BoolArray:
        """A mask of the times that are lower bounds (workers, window)."""
        return self._in_order(self._cut)

    @property
    def iterations(self) -> NDArray[np.int64]:
        """The iteration in which the measurement of each time began (workers, window); 0: no measurement."""
        return self._in_order(self._iterations)

    def track(self, rank: int) -> Track:
        link_mbps, link_backlog_s = self._links.get(rank, (0.0, 0.0))
        return Track(
            reported=int(self._reported[rank]),
            reached=int(self.reached[rank]),
            arrivals=int(self._arrivals[rank]),
            late=int(self._late[rank]),
            late_in_a_row=int(self.late_in_a_row[rank]),
            last_first_block_s=float(self._last_s[rank]),
            account=self._accounts.get(rank, Account()),
            unheard=self._unheard.get(rank, 0),
            link_mbps=link_mbps,
            link_backlog_s=link_backlog_s,
        )

    def _in_order(self, rings: NDArray[Scalar]) -> NDArray[Scalar]:
        """Return the rings' content (workers, window), oldest first."""
        places = (self.reports[:, None] + np.arange(self.window)) % self.window
        return np.asarray(rings[places, np.arange(self.workers)[:, None]])

    def _has_reached(self, ranks: Ranks, iteration: Ranks, now_s: Numbers) -> None:
        """Note signs of life: the workers' next iterations begin now or later."""
        self._began_s[ranks] = now_s
        self.reached[ranks] = np.maximum(self.reached[ranks], iteration)
        front = iteration if isinstance(iteration, int) else int(iteration.max(initial=0))
        if front > self._front:
            self._front = front
            self._first_s[front] = float(np.min(now_s, where=np.equal(iteration, front), initial=np.inf))
            if len(self._first_s) > FRONTS_KEPT:
                del self._first_s[next(iter(self._first_s))]

    def _push(self, ranks: Ranks, iteration: Ranks, first_block_s: Numbers, *, censored: Flags, late: Flags) -> None:
        """Append an observation of each of these workers, and drop the oldest observation."""
        place = self.reports[ranks] % self.window, ranks
        self._times_s[place], self._cut[place], self._iterations[place] = first_block_s, censored, iteration
        self.reports[ranks] += 1
        self._reported[ranks], self._last_s[ranks] = iteration, first_block_s
        self._late[ranks] += late
        self.late_in_a_row[ranks] = (self.late_in_a_row[ranks] + 1) * late

    def _push_wait(self, ranks: Ranks, link_wait_s: Numbers, *, unsure: bool = False) -> None:
        """Append a link wait of each of these workers."""
        for kept, latest in ((self.link_waits_s, link_wait_s), (self.link_waits_unsure, unsure)):
            rows = kept[ranks]
            rows[..., :-1] = rows[..., 1:]
            rows[..., -1] = latest
            kept[ranks] = rows

    def _fault(self, rank: int, iteration: int) -> tuple[str, str] | None:
        """Return the fault of a rank or iteration as (kind, sentence); None if there is none."""
        if not 0 <= rank < self.workers:
            return "rank", f"the rank must be 0 to {self.workers - 1}, got {rank}"
        highest = self._front + AHEAD_MAX
        if not 1 <= iteration <= highest:
            return "iteration", f"iteration must be 1 to {highest}, got {iteration}"
        return None

    def _report_fault(self, rank: int, report: pb.Report) -> tuple[str, str] | None:
        """Return the fault of a report's content; None if there is none."""
        if report.iteration <= self._reported[rank]:
            return "order", f"iteration must be above {self._reported[rank]}, got {report.iteration}"
        for name, (kind, most) in LIMITS.items():
            if not 0 <= (value := getattr(report, name)) <= most:
                return kind, f"{name} must be 0 to {most:g}, got {value}"
        if not abs(report.gradient_agreement) <= NORM2_MAX:
            return (
                "norm",
                f"gradient_agreement must be -{NORM2_MAX:g} to {NORM2_MAX:g}, got {report.gradient_agreement}",
            )
        if not all(abs(product) <= NORM2_MAX for product in report.aggregate_products):
            return (
                "norm",
                f"aggregate_products must be -{NORM2_MAX:g} to {NORM2_MAX:g}, got {report.aggregate_products}",
            )
        return self._number_fault(report.gradients, report.contributors) or self._account_fault(account_of(report))

    def _number_fault(self, gradients: float, contributors: float) -> tuple[str, str] | None:
        """Return the fault of the number of gradients in an average; None if it fits the number of contributors."""
        if contributors != 0 and not 1 <= contributors <= self.workers:
            return "number", f"contributors must be 0, or 1 to {self.workers}, got {contributors}"
        least, most = (1 / WEIGHT_UNIT, WEIGHT_MAX / WEIGHT_UNIT * PARTS * self.workers) if contributors else (0, 0)
        if not least <= gradients <= most:
            return (
                "number",
                f"gradients of {contributors:g} contributors must be {least:g} to {most:g}, got {gradients}",
            )
        return None

    @staticmethod
    def _account_fault(account: Account | None) -> tuple[str, str] | None:
        """Return the fault of a worker's account; None if all numbers are finite and at least 0."""
        numbers = (account.entered, account.summed, account.waiting, account.discarded) if account else ()
        if not all(0 <= number < math.inf for number in numbers):
            return "account", f"numbers of gradients must be 0 or more, got {account}"
        return None

    def _refuse(self, rank: int, source: str, kind: str, sentence: str) -> bool:
        """Count the refusal, and log the first of its kind. Ranks out of range share one entry, which bounds the
        memory."""
        self.refused += 1
        key = (rank if 0 <= rank < self.workers else -1, source + kind)
        if key not in self._logged:
            self._logged.add(key)
            _LOG.warning("refused a %s of worker %d: %s (further ones are only counted)", source, rank, sentence)
        return False


def account_of(report: pb.Report) -> Account | None:
    """Return a report's account of the worker's gradients; None if none was entered or the worker has no ledger."""
    if not report.entered:
        return None
    return Account(**{name: getattr(report, name) for name in Account.__dataclass_fields__})
