"""Builds table entries and multicast groups that data planes have in common, by p4info's names."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias

import finsy as fy

from kofn_controller.p4runtime.layout import SlotLayout
from kofn_controller.p4runtime.roles import ONLY_SWITCH, SwitchRole

FLOOD_GROUP = 0x100
"""The multicast group of all ports. A job's own group is its id, 1 to 127."""

BROADCAST_MAC = 0xFFFF_FFFF_FFFF

SwitchEntry: TypeAlias = fy.P4TableEntry | fy.P4MulticastGroupEntry


def exact(table: str, match: Mapping[str, int], action: str | fy.P4TableAction, **arguments: int) -> fy.P4TableEntry:
    """Return a table entry with exact matches; `arguments` are the parameters of an action that is given by name."""
    chosen = fy.P4TableAction(action, **arguments) if isinstance(action, str) else action
    return fy.P4TableEntry(table, match=fy.P4TableMatch(match), action=chosen)


def group(number: int, ports: Sequence[int]) -> fy.P4MulticastGroupEntry:
    """Return the multicast group of these ports."""
    return fy.P4MulticastGroupEntry(number, replicas=list(ports))


def forwarding(
    layouts: Sequence[SlotLayout], role: SwitchRole = ONLY_SWITCH, control: str = "ingress.forward"
) -> Iterator[SwitchEntry]:
    """Yield the entries of a plain Ethernet switch, which every program needs: the hosts agree on calls by TCP.

    A host sends IPv4 from its own address only.  `control` has the tables sources and l2 and the actions to_port and
    flood of p4src/include/hosts.p4.
    """
    hosts = layouts[0].hosts
    yield group(FLOOD_GROUP, list(dict.fromkeys(map(role.port, hosts))))
    for host in hosts:
        port = role.port(host)
        source = {"standard_metadata.ingress_port": port, "hdr.ipv4.src_addr": host.ip}
        yield exact(f"{control}.sources", source, "NoAction")
        yield exact(f"{control}.l2", {"hdr.ethernet.dst_addr": host.mac}, f"{control}.to_port", port=port)
    yield exact(f"{control}.l2", {"hdr.ethernet.dst_addr": BROADCAST_MAC}, f"{control}.flood", group=FLOOD_GROUP)


def addressing(layouts: Sequence[SlotLayout], control: str = "egress.address") -> Iterator[SwitchEntry]:
    """Yield the entries that give answers the addresses of the host behind each port, and each job's multicast group,
    whose number is the job's id.

    `control` has the table hosts and the action to_host of p4src/include/hosts.p4.
    """
    for host in layouts[0].hosts:
        match = {"standard_metadata.egress_port": host.port}
        yield exact(f"{control}.hosts", match, f"{control}.to_host", mac=host.mac, ip=host.ip)
    for layout in layouts:
        yield group(layout.job.id, [host.port for host in layout.members])
