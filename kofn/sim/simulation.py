"""A training whose gradients a switch, a tree of switches or a parameter server sums, packet by packet."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from kofn.sim.controller import MANAGEMENT_S
from kofn.sim.network import Link, LinkEnd
from kofn.sim.switches import Summing, VirtualServer, VirtualSwitches
from kofn.sim.trial import VirtualTrial
from kofn.sim.worker import Surroundings, Worker
from kofn.sim.worker_model import WorkerModel
from kofn_common.collectives.job_collective import load_collective
from kofn_common.rpc import kofn_pb2 as pb
from kofn_controller.estimate.measurements import Arrival
from kofn_host.agent.following import FOLLOW_S, Follower
from kofn_host.transport.fault_injection import Faults

LAST_ITERATION = 2**32 - 1


@dataclass(slots=True, kw_only=True)
class Simulation(VirtualTrial):
    """A training by packets: links, the switches or the server, and workers with the real protocol core."""

    models: Sequence[WorkerModel]
    workers: list[Worker] = field(init=False)
    switches: Summing = field(init=False)
    uplinks: list[Link] = field(init=False)
    downlinks: list[Link] = field(init=False)
    _asking: set[int] = field(default_factory=set)
    _following: dict[int, Follower] = field(default_factory=dict)
    """By rank: what a worker that gets results from a peer has got."""

    def _connect(self, around: Surroundings) -> None:
        ranks = range(self.config.job.workers)
        self.controller.control_loop.follows[:] = True
        self.switches = self._summing()
        self.uplinks = [self._link(rank, "send", self.switches.of(rank)) for rank in ranks]
        self.workers = [Worker(around, rank, self.uplinks[rank], self.models[rank], self._ask_peers) for rank in ranks]
        self.downlinks = [self._link(rank, "receive", self.workers[rank].host) for rank in ranks]
        self.switches.lead(self.downlinks)

    def _summing(self) -> Summing:
        """Return the switches, or the parameter server, with the first k."""
        job, network, k = self.config.job, self.config.network, self.controller.control_loop.k
        if load_collective(job.collective).server:
            return VirtualServer(self.clock, self.machine, job, k=k, mbps=network.link_mbps, costs=self.costs)
        switches = VirtualSwitches(
            self.clock,
            self.machine,
            job,
            uplink_mbps=network.uplink_mbps,
            switch_s=self.costs.switch_s,
            digest=self._digest,
        )
        switches.set_k(k)
        return switches

    def _link(self, rank: int, direction: str, end: LinkEnd) -> Link:
        faults = Faults(self.config.fault, rank=rank, direction=direction, seed=self.config.run.seed)
        return Link.to(end, self.clock, self.config.network.link_mbps, faults)

    def _digest(self, worker: int, iteration: int, late: bool) -> None:
        """Send the controller a worker's first counted contribution of an iteration."""
        now_s, verdict = self.clock.time(), "LATE" if late else "ADDED"
        arrival = Arrival(worker=worker, iteration=iteration, verdict=verdict, timestamp_us=int(1e6 * now_s))
        self.clock.after(now_s + MANAGEMENT_S, self.controller.arrival, arrival)

    def _iteration(self, rank: int) -> int:
        return self.workers[rank].protocol.iteration

    def _set_k(self, k: int) -> None:
        self.switches.set_k(k)

    def _shape(self, rank: int, mbps: float) -> None:
        self.uplinks[rank].shape(mbps)
        self.downlinks[rank].shape(mbps)

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
