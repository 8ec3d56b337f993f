"""The switches of a job: a single switch, a root with a leaf for each rack, or a switch before a parameter server."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

from kofn.sim.clock import VirtualClock
from kofn.sim.costs import Costs
from kofn.sim.machine import Machine
from kofn.sim.network import Link, VirtualSwitch
from kofn_common.config.job import JobSection
from kofn_common.wire.packet import leaf_shift
from kofn_host.protocol.leaf import NativeLeaf
from kofn_host.protocol.slots import NativeSlots
from kofn_host.transport.fault_injection import Faults

NO_FAULTS = Faults((), rank=0, direction="send", seed=0)

Digest = Callable[[int, int, bool], None]
"""A function that takes a worker's first counted contribution of an iteration: the rank, the iteration, and whether the
contribution was late."""


class Summing(Protocol):
    """The part of the network that sums the workers' packets."""

    def of(self, rank: int) -> VirtualSwitch:
        """Return the switch to which a worker is attached."""

    def lead(self, links: Sequence[Link]) -> None:
        """Connect a link to each worker."""

    def follow(self, rank: int, follows: bool) -> None:
        """Send a worker answers to its own packets only, or all answers."""

    def set_k(self, k: int) -> None:
        """Take the controller's k."""


class VirtualSwitches(Summing):
    """The switches of a job, which get k from the controller, and report arrivals to `digest`.

    `uplink_mbps` is the rate of each link between a leaf and the root; None: not shaped.
    """

    def __init__(
        self,
        clock: VirtualClock,
        machine: Machine,
        job: JobSection,
        *,
        uplink_mbps: float | None,
        switch_s: float,
        digest: Digest,
    ) -> None:
        self._job, self._each = job, job.workers // job.racks
        self._leaves: list[NativeLeaf] = []
        self.uplinks: list[Link] = []
        """The links from the leaves to the root."""
        self.downlinks: list[Link] = []
        self._top = NativeSlots.open(
            workers=job.workers, k=job.workers, slots=job.slots, racks=job.racks if job.racks > 1 else 0
        )
        switch = partial(VirtualSwitch, machine, packet_s=switch_s)
        if job.racks == 1:
            self._attached = [switch(self._top, neighbours=job.workers, digest=digest)]
            return
        self._leaves = [NativeLeaf.open(rack=rack, workers=self._each, slots=job.slots) for rack in range(job.racks)]
        self._attached = [
            switch(leaf, neighbours=self._each, digest=partial(_of_rack, digest, leaf.rack * self._each))
            for leaf in self._leaves
        ]
        root = switch(self._top, neighbours=job.racks)
        self.uplinks = [Link.to(root, clock, uplink_mbps, NO_FAULTS) for _ in self._leaves]
        self.downlinks = [Link.to(leaf, clock, uplink_mbps, NO_FAULTS) for leaf in self._attached]
        root.lead(self.downlinks)

    def of(self, rank: int) -> VirtualSwitch:
        return self._attached[rank // self._each]

    def lead(self, links: Sequence[Link]) -> None:
        for at, switch in enumerate(self._attached):
            switch.lead(links[at * self._each : (at + 1) * self._each], self.uplinks[at] if self.uplinks else None)

    def follow(self, rank: int, follows: bool) -> None:
        self.of(rank).follow(rank % self._each, follows)

    def set_k(self, k: int) -> None:
        """Set k at all switches, as the controller does."""
        self._top.k = k
        for leaf in self._leaves:
            leaf.k, leaf.shift = k, leaf_shift(k, self._job.workers, self._job.racks)


class VirtualServer(Summing):
    """A switch that forwards packets, and a parameter server with a fixed k behind a link of its own at `mbps`."""

    def __init__(
        self, clock: VirtualClock, machine: Machine, job: JobSection, *, k: int, mbps: float | None, costs: Costs
    ) -> None:
        slots = NativeSlots.open(workers=job.workers, k=k, slots=job.slots)
        server = VirtualSwitch(machine, slots, neighbours=job.workers, packet_s=costs.server_s)
        self._switch = VirtualSwitch(machine, None, neighbours=job.workers, packet_s=costs.forward_s)
        self.downlink = Link.to(server, clock, mbps, NO_FAULTS)
        """The link from the switch to the server."""
        self.uplink = Link.to(self._switch, clock, mbps, NO_FAULTS)
        server.lead([self.uplink] * job.workers)

    def of(self, rank: int) -> VirtualSwitch:
        return self._switch

    def lead(self, links: Sequence[Link]) -> None:
        self._switch.lead(links, self.downlink)

    def follow(self, rank: int, follows: bool) -> None:
        """Do nothing: the server sends all answers to every worker."""

    def set_k(self, k: int) -> None:
        """Do nothing: the server's k is fixed."""


def _of_rack(digest: Digest, first: int, worker: int, iteration: int, late: bool) -> None:  # as a Digest
    """Report a contribution in the rack whose first rank is `first`; `worker` is the worker's number in the rack."""
    digest(first + worker, iteration, late)
