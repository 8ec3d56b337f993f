"""The controller in virtual time: the real control loop without the real session. In place of the session, this module
gives the control loop the workers' reports, and brings k to the switch."""

from collections.abc import Callable
from dataclasses import dataclass, field

from kofn.sim.clock import VirtualClock
from kofn.sim.costs import Costs
from kofn.sim.machine import Machine
from kofn.sim.schedule import VirtualSchedule
from kofn_common.config.interventions import EventSection
from kofn_common.config.late_rules import LatePolicy
from kofn_common.rpc import kofn_pb2 as pb
from kofn_controller.estimate.measurements import Arrival
from kofn_controller.job.journal import Journal
from kofn_controller.job.link_news import LinkNews
from kofn_controller.policy.control_loop import Change, ControlLoop
from kofn_controller.policy.decision_pacer import TICK_S, DecisionPacer

MANAGEMENT_S = 0.001
"""The time of a message between worker and controller."""

PUSH_S = 0.002
"""The time from a decision until the switch has the new table entry."""


@dataclass(slots=True, kw_only=True)
class Controller:
    """The controller of one job; `set_k` sets k at the switches."""

    clock: VirtualClock
    control_loop: ControlLoop
    journal: Journal
    job: int
    events: tuple[EventSection, ...]
    """Events that change the objective during the run."""
    set_k: Callable[[int], None]
    set_late_policy: Callable[[LatePolicy], None]
    """Sets the late policy of all workers."""
    set_link: Callable[[int, pb.Link], None]
    """Tells a worker whether its link is slow, and whether it follows its peers."""
    machine: Machine
    costs: Costs
    changes: int = 0
    """The number of changes of k."""
    _lull: DecisionPacer = field(default_factory=DecisionPacer)
    _sampled: int = 0
    _links: LinkNews = field(default_factory=LinkNews)
    _agenda: VirtualSchedule[EventSection] = field(init=False)

    def __post_init__(self) -> None:
        self._agenda = VirtualSchedule(self.clock, self.events, self._set_objective)

    def start(self) -> None:
        self.control_loop.measurements.begin(self.clock.time())
        self.clock.after(TICK_S, self._tick)

    def report(self, rank: int, report: pb.Report) -> None:
        """Take a worker's report of an iteration."""
        self.clock.after(self.clock.time() + MANAGEMENT_S, self._report, rank, report)

    def arrival(self, arrival: Arrival) -> None:
        """Take an arrival that the switch has reported."""
        self.control_loop.measurements.arrival(arrival, self.clock.time())

    def _report(self, rank: int, report: pb.Report) -> None:
        self.machine.spend(self.costs.take_s)
        if not self.control_loop.report(rank, report, self.clock.time()):
            return
        self._lull.reported(self.clock.time())
        if self.control_loop.iteration > self._sampled:
            self._sampled = self.control_loop.iteration
            self.journal.sample(self.job, self.control_loop)
            self._agenda.reached(self.control_loop.iteration)

    def finished(self) -> None:
        """Take a last decision, if one is due, after the last report of the worker that was the first to reach its
        goal."""
        self.clock.after(self.clock.time() + MANAGEMENT_S, self._decide)

    def _tick(self) -> None:
        self._look()
        self.clock.after(self.clock.time() + TICK_S, self._tick)

    def _look(self) -> None:
        """Take a decision, if one is due and the controller has time for it."""
        if self._lull.now(self.clock.time()):
            self._decide()

    def _decide(self) -> None:
        """Take a decision, if one is due."""
        now_s = self.clock.time()
        if self.control_loop.due(now_s):
            self._apply(self.control_loop.choose(now_s))
            self._tell_links()
            self.machine.spend(self.costs.decide_s)
            self._lull.decided(now_s, now_s + self.costs.decide_s)

    def _tell_links(self) -> None:
        """Send the workers the news of their links."""
        for rank, link in self._links.changes(self.control_loop):
            self.clock.after(self.clock.time() + MANAGEMENT_S, self.set_link, rank, link)

    def _set_objective(self, event: EventSection) -> None:
        """Set the objective, as `kofn set-k` would."""
        assert event.objective is not None  # virtual processes have no other events
        change = self.control_loop.set_objective(event.objective, self.clock.time())
        self.journal.objective(self.job, self.control_loop, planned=True)
        self._apply(change)

    def _apply(self, change: Change | None) -> None:
        """Log a change, and send it to the switch and the workers."""
        self.journal.fault(self.job, self.control_loop)
        if change is not None:
            self.changes += 1
            self.journal.decision(self.job, self.control_loop, change)
            self.clock.after(self.clock.time() + self.costs.decide_s + PUSH_S, self._push)
            self.clock.after(
                self.clock.time() + self.costs.decide_s + MANAGEMENT_S, self.set_late_policy, change.late_policy
            )

    def _push(self) -> None:
        """Set the latest k."""
        self.set_k(self.control_loop.k)
