"""Commands about copies: multicast groups of nodes, and mirroring (clone) sessions."""

from collections.abc import Iterator
from itertools import pairwise

from kofn_switch.commands.session import CommandError, Commands, Node, Session, check_count, number
from kofn_switch.commands.values import MANY, RULE, STARS
from kofn_switch.compiler.ir.program import PORT_MAX
from kofn_switch.engine.copy_controls import GROUP_MAX, INSTANCE_MAX, SESSION_MAX
from kofn_switch.state.entries import CloneSession, Replica

GROUPS, INSTANCES = range(1, GROUP_MAX + 1), range(INSTANCE_MAX + 1)
"""Valid values of standard_metadata.mcast_grp and egress_rid. BMv2's client takes any number of 32 bits, but no packet
can have a larger number than these."""

MIRRORS, PORTS = range(SESSION_MAX + 1), range(PORT_MAX + 1)

NO_GROUP = "Invalid PRE operation (INVALID_MGRP_HANDLE)"


def mc_mgrp_create(session: Session, words: list[str]) -> Iterator[str]:
    """Make a multicast group: mc_mgrp_create <group id>"""
    check_count(words, 1)
    group = number(words[0], "mgid", GROUPS)
    if group in session.groups:
        raise CommandError("Invalid PRE operation (MGID_EXISTS)")
    session.groups[group] = []
    yield f"Creating multicast group {group}"


def mc_mgrp_destroy(session: Session, words: list[str]) -> Iterator[str]:
    """Remove a multicast group: mc_mgrp_destroy <group id>"""
    check_count(words, 1)
    group = _group(session, words[0])
    for handle in session.groups.pop(group):
        session.nodes[handle].group = None
    _update(session, group)
    yield f"Destroying multicast group {group}"


def mc_node_create(session: Session, words: list[str]) -> Iterator[str]:
    """Make a node: mc_node_create <rid> <ports>"""
    check_count(words, 1, MANY)
    node = Node(number(words[0], "rid", INSTANCES), _ports(words[1:]))
    handle = next(free for free in range(len(session.nodes) + 1) if free not in session.nodes)
    session.nodes[handle] = node
    yield f"Creating node with rid {node.instance} , port map {_map(node.ports)} and lag map "
    yield f"node was created with handle {handle}"


def mc_node_update(session: Session, words: list[str]) -> Iterator[str]:
    """Give a node other ports: mc_node_update <node handle> <ports>"""
    check_count(words, 2, MANY)
    node = _node(session, words[0])
    node.ports = _ports(words[1:])
    if node.group is not None:
        _update(session, node.group)
    yield f"Updating node {words[0]} with port map {_map(node.ports)} and lag map "


def mc_node_associate(session: Session, words: list[str]) -> Iterator[str]:
    """Put a node into a multicast group: mc_node_associate <group handle> <node handle>"""
    check_count(words, 2)
    group, node = _group(session, words[0]), _node(session, words[1])
    if node.group is not None:
        raise CommandError(f"Invalid PRE operation (ERROR): node {words[1]} is in multicast group {node.group}")
    node.group = group
    session.groups[group].append(number(words[1], "node handle"))
    _update(session, group)
    yield f"Associating node {words[1]} to multicast group {group}"


def mc_node_dissociate(session: Session, words: list[str]) -> Iterator[str]:
    """Take a node out of a multicast group: mc_node_dissociate <group handle> <node handle>"""
    check_count(words, 2)
    group, node = _group(session, words[0]), _node(session, words[1])
    if group != node.group:
        raise CommandError("Invalid PRE operation (L1_NOT_ASSOCIATED)")
    node.group = None
    session.groups[group].remove(number(words[1], "node handle"))
    _update(session, group)
    yield f"Dissociating node {words[1]} from multicast group {group}"


def mc_node_destroy(session: Session, words: list[str]) -> Iterator[str]:
    """Remove a node: mc_node_destroy <node handle>"""
    check_count(words, 1)
    node, handle = _node(session, words[0]), number(words[0], "node handle")
    if node.group is not None:
        session.groups[node.group].remove(handle)
        _update(session, node.group)
    del session.nodes[handle]
    yield f"Destroying node {handle}"


def mc_dump(session: Session, words: list[str]) -> Iterator[str]:
    """Show multicast groups; groups of P4Runtime's clients have no nodes: mc_dump"""
    check_count(words, 0)
    yield from (RULE, "MC ENTRIES")
    others = {group: replicas for group, replicas in session.engine.groups().items() if group not in session.groups}
    for group in sorted([*session.groups, *others]):
        yield from (STARS, f"mgrp({group})")
        for handle in session.groups.get(group, ()):
            node = session.nodes[handle]
            ports = ", ".join(map(str, node.ports))
            yield f"  -> (L1h={handle}, rid={node.instance}) -> (ports=[{ports}], lags=[])"
        for replica in others.get(group, ()):
            yield f"  -> (rid={replica.instance}) -> (ports=[{replica.port}], lags=[])"
    yield from (RULE, "LAGS", RULE)


def mirroring_add(session: Session, words: list[str]) -> Iterator[str]:
    """Mirror to a port: mirroring_add <mirror_id> <egress_port>"""
    check_count(words, 2)
    _mirror_to(session, words[0], CloneSession(replicas=(Replica(port=number(words[1], "egress_port", PORTS)),)))
    yield from ()


def mirroring_add_mc(session: Session, words: list[str]) -> Iterator[str]:
    """Mirror to a multicast group: mirroring_add_mc <mirror_id> <mgrp>"""
    check_count(words, 2)
    _mirror_to(session, words[0], CloneSession(group=number(words[1], "mgrp", GROUPS)))
    yield from ()


def mirroring_delete(session: Session, words: list[str]) -> Iterator[str]:
    """Remove a mirroring session: mirroring_delete <mirror_id>"""
    check_count(words, 1)
    session.engine.delete_session(_mirror(session, words[0]))
    yield from ()


def mirroring_get(session: Session, words: list[str]) -> Iterator[str]:
    """Show a mirroring session: mirroring_get <mirror_id>"""
    check_count(words, 1)
    found = session.engine.sessions()[_mirror(session, words[0])]
    port = found.replicas[0].port if found.replicas else None
    yield f"MirroringSessionConfig(port={port}, mgid={found.group or None})"


def _group(session: Session, word: str) -> int:
    group = number(word, "mgid")
    if group not in session.groups:
        raise CommandError(NO_GROUP)
    return group


def _node(session: Session, word: str) -> Node:
    handle = number(word, "node handle")
    if handle not in session.nodes:
        raise CommandError("Invalid PRE operation (INVALID_L1_HANDLE)")
    return session.nodes[handle]


def _mirror(session: Session, word: str) -> int:
    mirror = number(word, "mirror_id")
    if mirror not in session.engine.sessions():
        raise CommandError("Invalid mirroring operation (SESSION_NOT_FOUND)")
    return mirror


def _mirror_to(session: Session, mirror: str, to: CloneSession) -> None:
    """Make a mirroring session.  As on BMv2 a program that a controller pushes does not remove it."""
    session.engine.set_session(number(mirror, "mirror_id", MIRRORS), to, lasting=True)


def _ports(words: list[str]) -> list[int]:
    if words[-1:] == ["|"]:
        words = words[:-1]
    if "|" in words:
        raise CommandError("link aggregation groups are not offered: ports alone")
    ports = sorted(number(word, "port", PORTS) for word in words)
    for port, following in pairwise(ports):
        if port == following:
            raise CommandError(f"Found duplicate port number '{port}'")
    return ports


def _map(ports: list[int]) -> str:
    """Return the ports as a binary number, in which bit p is 1 for port p; "" without ports."""
    return f"{sum(1 << port for port in ports):b}" if ports else ""


def _update(session: Session, group: int) -> None:
    replicas = [replica for handle in session.groups.get(group, ()) for replica in session.nodes[handle].replicas()]
    if replicas:
        session.engine.set_group(group, replicas, lasting=True)  # it stays like a mirroring session
    elif group in session.engine.groups():
        session.engine.delete_group(group)


COMMANDS: Commands = {
    command.__name__: command
    for command in (
        *(mc_mgrp_create, mc_mgrp_destroy, mc_node_create, mc_node_update, mc_node_associate, mc_node_dissociate),
        *(mc_node_destroy, mc_dump, mirroring_add, mirroring_add_mc, mirroring_delete, mirroring_get),
    )
}
