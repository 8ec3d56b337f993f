"""A switch's role, which determines its table entries for a job: the only switch, the root of a tree, or a rack's leaf.

docs/reference/tree.md has the protocol between leaf and root.
"""

import ipaddress
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import finsy as fy

from kofn_common.wire.packet import SERVICE, leaf_shift
from kofn_common.wire.sizes import PARTS
from kofn_controller.p4runtime.layout import LEAF_BUFFERS, SlotLayout
from kofn_controller.p4runtime.topology import PortMap, TopologyHost

SET_JOB = "ingress.admission.set_job"
SET_LEAF = "ingress.admission.set_leaf"

SERVICE_ADDRESS = {"mac": 0x026B_6F66_6EFE, "ip": int(ipaddress.IPv4Address(SERVICE))}
"""The addresses of every packet between two switches: an answer's source is the destination of the packet that caused
it, so hosts get their answers from the service address (mininet/topology.py has the same MAC)."""

ROOM = 0xFFFF
"""The number of contributions that fit a lane at a root. It is so large that the root refuses no contribution, because
the workers of a tree scale their values so that all parts of all workers fit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Neighbour:
    """A sender of a job's packets to a switch, which also gets the answers: its port, its number in the header's field
    `worker`, the action that admits its packets, and the action that addresses packets to it."""

    port: int
    worker: int
    admit: fy.P4TableAction
    address: fy.P4TableAction


class SwitchRole(Protocol):
    """A switch's role."""

    @property
    def name(self) -> str:
        """The switch's name in messages."""

    def port(self, host: TopologyHost) -> int:
        """Return the port that leads to a host."""

    def job(self, layout: SlotLayout, *, k: int, base: int, **slots: int) -> fy.P4TableAction:
        """Return the action of the job's own entry, with slots from `base` on."""

    def neighbours(self, layout: SlotLayout) -> Iterator[Neighbour]:
        """Yield the senders of the job's packets."""

    def group(self, layout: SlotLayout, followers: frozenset[int] = frozenset()) -> Sequence[int]:
        """Return the ports of the job's multicast group, which gets the results, without those of these ranks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OnlySwitch:
    """The only switch, with all hosts."""

    name: str = "the switch"

    def port(self, host: TopologyHost) -> int:
        return host.port

    def job(self, layout: SlotLayout, *, k: int, base: int, **slots: int) -> fy.P4TableAction:
        """The room is the number of workers, because workers scale their values so that one contribution of each fits
        a lane.
        """
        return fy.P4TableAction(SET_JOB, k=k, base=base, room=layout.job.workers, racks=0, **slots)

    def neighbours(self, layout: SlotLayout) -> Iterator[Neighbour]:
        return _workers(layout, 0)

    def group(self, layout: SlotLayout, followers: frozenset[int] = frozenset()) -> Sequence[int]:
        return [host.port for rank, host in enumerate(layout.members) if rank not in followers]


@dataclass(frozen=True, slots=True, kw_only=True)
class RootSwitch:
    """The root of a tree. `ports` lead to the leaves, by rack."""

    ports: tuple[int, ...]
    name: str = "root"

    def port(self, host: TopologyHost) -> int:
        return self.ports[host.rack]

    def job(self, layout: SlotLayout, *, k: int, base: int, **slots: int) -> fy.P4TableAction:
        return fy.P4TableAction(SET_JOB, k=k, base=base, room=ROOM, racks=layout.racks, **slots)

    def neighbours(self, layout: SlotLayout) -> Iterator[Neighbour]:
        most = PARTS * layout.rack_workers
        for rack, port in enumerate(self.ports):
            admit = fy.P4TableAction("ingress.admission.admit_leaf", rack=rack, most=most)
            yield Neighbour(port=port, worker=rack, admit=admit, address=_to_switch(rack))

    def group(self, layout: SlotLayout, followers: frozenset[int] = frozenset()) -> Sequence[int]:
        return self.ports


@dataclass(frozen=True, slots=True, kw_only=True)
class LeafSwitch:
    """The leaf of one rack. Port `uplink` leads to the root."""

    rack: int
    uplink: int

    @property
    def name(self) -> str:
        return f"leaf-{self.rack}"

    def port(self, host: TopologyHost) -> int:
        return host.port if host.rack == self.rack else self.uplink

    def job(self, layout: SlotLayout, *, k: int, base: int, **slots: int) -> fy.P4TableAction:
        return fy.P4TableAction(
            SET_LEAF,
            k=k,
            base=LEAF_BUFFERS * base,
            racks=layout.racks,
            rack=self.rack,
            uplink=self.uplink,
            everyone=(1 << layout.rack_workers) - 1,
            shift=leaf_shift(k, layout.job.workers, layout.racks),
            **slots,
        )

    def neighbours(self, layout: SlotLayout) -> Iterator[Neighbour]:
        yield from _workers(layout, self.rack)
        admit = fy.P4TableAction("ingress.admission.admit_root")
        yield Neighbour(port=self.uplink, worker=self.rack, admit=admit, address=_to_switch(self.rack))

    def group(self, layout: SlotLayout, followers: frozenset[int] = frozenset()) -> Sequence[int]:
        first = self.rack * layout.rack_workers
        return [host.port for rank, host in enumerate(layout.rack(self.rack), first) if rank not in followers]


def _workers(layout: SlotLayout, rack: int) -> Iterator[Neighbour]:
    """Yield the workers of a rack."""
    for number, host in enumerate(layout.rack(rack)):
        admit = fy.P4TableAction("ingress.admission.admit_host")
        address = fy.P4TableAction("egress.deliver.to_host", mac=host.mac, ip=host.ip, rack=rack, worker=number)
        yield Neighbour(port=host.port, worker=number, admit=admit, address=address)


def _to_switch(rack: int) -> fy.P4TableAction:
    return fy.P4TableAction("egress.deliver.to_switch", rack=rack, **SERVICE_ADDRESS)


ONLY_SWITCH = OnlySwitch()


def roles_of(topology: PortMap) -> list[SwitchRole]:
    """Return the roles of all switches: the only one's, or the root's and then each leaf's."""
    if not topology.uplinks:
        return [ONLY_SWITCH]
    leaves = [LeafSwitch(rack=rack, uplink=uplink.leaf) for rack, uplink in enumerate(topology.uplinks)]
    return [RootSwitch(ports=tuple(uplink.root for uplink in topology.uplinks)), *leaves]
