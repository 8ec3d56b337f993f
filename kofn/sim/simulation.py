"""A job's whole training with an objective in virtual time: workers, links, switches and controller together."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from kofn.run.errors import RunError
from kofn.run.schedule import action
from kofn.sim.clock import VirtualClock
from kofn.sim.controller import MANAGEMENT_S, Controller
from kofn.sim.costs import Costs
from kofn.sim.machine import Machine
from kofn.sim.network import Link, LinkEnd
from kofn.sim.schedule import VirtualSchedule
from kofn.sim.switches import VirtualSwitches
from kofn.sim.worker import Surroundings, Worker
from kofn.sim.worker_model import WorkerModel
from kofn_common.config.interventions import LinkSection as Rate
from kofn_common.config.late_rules import LatePolicy
from kofn_common.config.schema import Config
from kofn_common.results.event_log import LoggedEvent
from kofn_common.rpc import kofn_pb2 as pb
from kofn_controller.estimate.measurements import Arrival
from kofn_controller.job.journal import Journal
from kofn_controller.policy.control_loop import ControlLoop
from kofn_host.agent.following import FOLLOW_S, Follower
from kofn_host.transport.fault_injection import Faults

LAST_ITERATION = 2**32 - 1

LOOK_S = 0.5
"""Virtual time between two reports of progress."""


@dataclass(slots=True, kw_only=True)
class Simulation:
    """Runs until every worker has reached its goal; `config.policy.objective` chooses k."""

    config: Config
    models: Sequence[WorkerModel]
    costs: Costs
    clock: VirtualClock
    journal: Journal
    controller: Controller = field(init=False)
    workers: list[Worker] = field(init=False)
    uplinks: list[Link] = field(init=False)
    reasons: dict[int, str] = field(default_factory=dict)
    """By rank: the reason of the worker's end."""
    first_s: float = 0.0
    """The time of the first worker's end."""
    _machine: Machine = field(init=False)
    switches: VirtualSwitches = field(init=False)
    _look: Callable[[ControlLoop, float], None] = field(init=False)
    downlinks: list[Link] = field(init=False)
    _asking: set[int] = field(default_factory=set)
    _following: dict[int, Follower] = field(default_factory=dict)
    """By rank: what a worker that gets results from a peer has got."""
    _links: VirtualSchedule[Rate] = field(init=False)
    events: list[LoggedEvent] = field(default_factory=list)
    """The log of changes of links."""
    ends_s: list[float] = field(default_factory=list)
    """By iteration: the virtual time at which the first worker had all results."""
    _finished_iteration: int = 0

    def __post_init__(self) -> None:
        config, job = self.config, self.config.job
        control_loop = ControlLoop(
            workers=job.workers, policy=config.policy, average=config.model.average, racks=config.job.racks
        )
        control_loop.follows[:] = True
        self._machine = Machine(self.clock, self.costs.cores)
        self.switches = VirtualSwitches(
            self.clock,
            self._machine,
            job,
            uplink_mbps=config.network.uplink_mbps,
            switch_s=self.costs.switch_s,
            digest=self._digest,
        )
        self.switches.set_k(control_loop.k)
        self.controller = Controller(
            clock=self.clock,
            control_loop=control_loop,
            journal=self.journal,
            job=job.id,
            events=config.event,
            set_k=self.switches.set_k,
            set_late_policy=self._set_late_policy,
            set_link=self._set_link,
            machine=self._machine,
            costs=self.costs,
        )
        around = Surroundings(
            config=config,
            clock=self.clock,
            machine=self._machine,
            costs=self.costs,
            report=self._report,
            ask_peers=self._ask_peers,
            ended=self._ended,
            finished=self._finished,
        )
        self._links = VirtualSchedule(self.clock, config.link, self._shape)
        ranks = range(job.workers)
        self.uplinks = [self._link(rank, "send", self.switches.of(rank)) for rank in ranks]
        self.workers = [Worker(around, rank, self.uplinks[rank], self.models[rank]) for rank in ranks]
        self.downlinks = [self._link(rank, "receive", self.workers[rank].host) for rank in ranks]
        self.switches.lead(self.downlinks)

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
                f"{self.workers[missing[0]].protocol.iteration}"
            )

    def _show(self) -> None:
        self._look(self.controller.control_loop, self.clock.time())
        self.clock.after(self.clock.time() + LOOK_S, self._show)

    def _link(self, rank: int, direction: str, end: LinkEnd) -> Link:
        faults = Faults(self.config.fault, rank=rank, direction=direction, seed=self.config.run.seed)
        return Link.to(end, self.clock, self.config.network.link_mbps, faults)

    def _digest(self, worker: int, iteration: int, late: bool) -> None:
        """Send the controller a worker's first counted contribution of an iteration."""
        now_s, verdict = self.clock.time(), "LATE" if late else "ADDED"
        arrival = Arrival(worker=worker, iteration=iteration, verdict=verdict, timestamp_us=int(1e6 * now_s))
        self.clock.after(now_s + MANAGEMENT_S, self.controller.arrival, arrival)

    def _report(self, rank: int, report: pb.Report) -> None:
        """Take a worker's report of a finished iteration: change links' rates if it is time, and send the report on."""
        self._finished_iteration = max(self._finished_iteration, report.iteration)
        self._links.reached(report.iteration)
        self.controller.report(rank, report)

    def _ended(self, iteration: int) -> None:
        if iteration > len(self.ends_s):
            self.ends_s.append(self.clock.time())

    def _shape(self, change: Rate) -> None:
        what, name = action(change)
        moment = LoggedEvent(time=self.clock.time(), iteration=self._finished_iteration, action=what, name=name)
        self.events.append(moment)
        for rank in change.workers:
            self.uplinks[rank].shape(change.mbps)
            self.downlinks[rank].shape(change.mbps)

    def _set_link(self, rank: int, link: pb.Link) -> None:
        """Tell a worker about its link; with a peer, the switch sends it no results."""
        worker, follows = self.workers[rank], link.HasField("peer")
        worker.set_link(link)
        self.switches.follow(rank, follows)
        self._following.pop(rank, None)
        if follows:
            follower = self._following[rank] = Follower(worker.protocol.iteration)
            self._follow(rank, self.workers[link.peer], follower)

    def _follow(self, rank: int, peer: Worker, follower: Follower) -> None:
        """Bring a worker the new results of its peer, every FOLLOW_S as long as it follows this peer."""
        if self._following.get(rank) is follower:
            now_s = self.clock.time()
            self.clock.after(now_s + MANAGEMENT_S, self.workers[rank].take_results, list(follower.fresh(peer.protocol)))
            self.clock.after(now_s + FOLLOW_S, self._follow, rank, peer, follower)

    def _set_late_policy(self, late_policy: LatePolicy) -> None:
        for worker in self.workers:
            worker.set_late_policy(late_policy)

    def _ask_peers(self, rank: int) -> None:
        """Fetch the other workers' results over the management network, unless a fetch is under way."""
        if rank in self._asking:
            return
        self._asking.add(rank)
        self.workers[rank].protocol.statistics.peer_fetches += 1
        self.clock.after(self.clock.time() + 2 * MANAGEMENT_S, self._answer, rank)

    def _answer(self, rank: int) -> None:
        self._asking.discard(rank)
        worker = self.workers[rank]
        for peer in self.workers:
            if peer is not worker and worker.protocol.missing:
                worker.take_results(list(peer.protocol.results(worker.protocol.iteration, LAST_ITERATION)))

    def totals(self, rank: int) -> dict[str, Any]:
        """Return a worker's totals at its end (results.worker_metrics.Totals)."""
        up, down = self.uplinks[rank], self.downlinks[rank]
        traffic = {
            "bytes_sent": up.payload_bytes,
            "bytes_received": down.payload_bytes,
            "packets_sent": up.packets,
            "packets_received": down.packets,
        }
        return traffic | asdict(self.workers[rank].protocol.statistics) | {"reason": self.reasons[rank]}

    def _finished(self, rank: int, reason: str) -> None:
        now_s = self.clock.time()
        if not self.reasons:
            self.first_s = now_s
            self.controller.finished()
        self.reasons[rank] = reason
        if len(self.reasons) == self.config.job.workers:
            self.clock.after(now_s + MANAGEMENT_S, self.clock.end)  # once the controller has the last report
