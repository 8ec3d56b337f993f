"""A job's training with an objective in virtual time: what all collectives have in common."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from kofn.run.errors import RunError
from kofn.run.schedule import action
from kofn.sim.clock import VirtualClock
from kofn.sim.controller import MANAGEMENT_S, Controller
from kofn.sim.costs import Costs
from kofn.sim.machine import Machine
from kofn.sim.schedule import VirtualSchedule
from kofn.sim.worker import Surroundings
from kofn_common.config.interventions import LinkSection as Rate
from kofn_common.config.late_rules import LatePolicy
from kofn_common.config.schema import Config
from kofn_common.results.event_log import LoggedEvent
from kofn_common.rpc import kofn_pb2 as pb
from kofn_controller.job.journal import Journal
from kofn_controller.policy.control_loop import ControlLoop

LOOK_S = 0.5
"""Virtual time between two reports of progress."""


class VirtualWorker(Protocol):
    """A worker in virtual time."""

    def start(self) -> None:
        """Begin the first iteration, with parameters that are equal at all workers."""

    def set_late_policy(self, late_policy: LatePolicy) -> None:
        """Set the rule for late gradients."""


@dataclass(slots=True, kw_only=True)
class VirtualTrial(ABC):
    """Runs until every worker has reached its goal; `config.policy.objective` chooses k."""

    config: Config
    costs: Costs
    clock: VirtualClock
    journal: Journal
    controller: Controller = field(init=False)
    machine: Machine = field(init=False)
    workers: Sequence[VirtualWorker] = field(init=False)
    """The workers, by rank."""
    reasons: dict[int, str] = field(default_factory=dict)
    """By rank: the reason of the worker's end."""
    first_s: float = 0.0
    """The time of the first worker's end."""
    events: list[LoggedEvent] = field(default_factory=list)
    """The log of changes of links."""
    ends_s: list[float] = field(default_factory=list)
    """By iteration: the virtual time at which the first worker had all results."""
    _look: Callable[[ControlLoop, float], None] = field(init=False)
    _links: VirtualSchedule[Rate] = field(init=False)
    _finished_iteration: int = 0

    def __post_init__(self) -> None:
        config, job = self.config, self.config.job
        self.machine = Machine(self.clock, self.costs.cores)
        control_loop = ControlLoop(
            workers=job.workers, policy=config.policy, average=config.model.average, racks=job.racks
        )
        self.controller = Controller(
            clock=self.clock,
            control_loop=control_loop,
            journal=self.journal,
            job=job.id,
            events=config.event,
            set_k=self._set_k,
            set_late_policy=self._set_late_policy,
            set_link=self._set_link,
            machine=self.machine,
            costs=self.costs,
        )
        self._links = VirtualSchedule(self.clock, config.link, self._change)
        around = Surroundings(
            config=config,
            clock=self.clock,
            machine=self.machine,
            costs=self.costs,
            report=self._report,
            ended=self._ended,
            finished=self._finished,
        )
        self._connect(around)

    # -- the collective

    @abstractmethod
    def _connect(self, around: Surroundings) -> None:
        """Make the workers and the network between them."""

    @abstractmethod
    def _iteration(self, rank: int) -> int:
        """Return the iteration that a worker takes part in."""

    @abstractmethod
    def totals(self, rank: int) -> Mapping[str, Any]:
        """Return a worker's totals at its end (results.worker_metrics.Totals)."""

    @abstractmethod
    def _set_k(self, k: int) -> None:
        """Take the controller's k."""

    @abstractmethod
    def _set_link(self, rank: int, link: pb.Link) -> None:
        """Tell a worker about its link."""

    @abstractmethod
    def _shape(self, rank: int, mbps: float) -> None:
        """Change the rate of a worker's link, in both directions."""

    # -- the course of the training

    def run(self, look: Callable[[ControlLoop, float], None]) -> None:
        """Simulate from the start to the last worker's end. Raise RunError if the training takes too long.

        `look` gets the control loop and the time, every LOOK_S and at the end.
        """
        self._look = look
        self._set_late_policy(self.controller.control_loop.late_policy)
        self.controller.start()
        self._show()
        for worker in self.workers:
            worker.start()
        self.clock.after(self.config.run.trial_deadline_s, self.clock.end)
        self.clock.run()
        look(self.controller.control_loop, self.clock.time())
        if missing := [rank for rank in range(len(self.workers)) if rank not in self.reasons]:
            raise RunError(
                f"trial {self.config.policy.objective!r} was not over after {self.clock.time():.0f} s of virtual time "
                f"(run.trial_deadline_s): worker {missing[0]} is in iteration "
                f"{self._iteration(missing[0])}"
            )

    def _show(self) -> None:
        self._look(self.controller.control_loop, self.clock.time())
        self.clock.after(self.clock.time() + LOOK_S, self._show)

    def _report(self, rank: int, report: pb.Report) -> None:
        """Take a worker's report of a finished iteration: change links' rates if it is time, and send the report on."""
        self._finished_iteration = max(self._finished_iteration, report.iteration)
        self._links.reached(report.iteration)
        self.controller.report(rank, report)

    def _ended(self, iteration: int) -> None:
        if iteration > len(self.ends_s):
            self.ends_s.append(self.clock.time())

    def _change(self, change: Rate) -> None:
        what, name = action(change)
        moment = LoggedEvent(time=self.clock.time(), iteration=self._finished_iteration, action=what, name=name)
        self.events.append(moment)
        for rank in change.workers:
            self._shape(rank, change.mbps)

    def _set_late_policy(self, late_policy: LatePolicy) -> None:
        for worker in self.workers:
            worker.set_late_policy(late_policy)

    def _finished(self, rank: int, reason: str) -> None:
        now_s = self.clock.time()
        if not self.reasons:
            self.first_s = now_s
            self.controller.finished()
        self.reasons[rank] = reason
        if len(self.reasons) == self.config.job.workers:
            self.clock.after(now_s + MANAGEMENT_S, self.clock.end)  # once the controller has the last report
