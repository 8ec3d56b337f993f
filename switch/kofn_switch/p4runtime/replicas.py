"""Replicas of multicast groups and clone sessions, in P4Runtime's messages and in the engine."""

from collections.abc import Iterable

from finsy.proto import p4r

from kofn_switch.engine.copy_controls import INSTANCE_MAX
from kofn_switch.p4runtime.bytestring import decode, encode
from kofn_switch.p4runtime.refusal import invalid, unimplemented
from kofn_switch.state.entries import Replica

PORT_BITS = 9


def decode_replicas(what: str, messages: Iterable[p4r.Replica]) -> tuple[Replica, ...]:
    """Return the engine's replicas; `what` names their owner for the refusal."""
    replicas = tuple(_replica(what, message) for message in messages)
    seen: set[Replica] = set()
    for replica in replicas:
        if replica in seen:
            raise invalid(f"{what} has port {replica.port} instance {replica.instance} twice")
        seen.add(replica)
    return replicas


def encode_replicas(replicas: Iterable[Replica]) -> list[p4r.Replica]:
    """Return the messages, with ports as egress_port, the form that both finsy and p4runtime-shell write."""
    return [p4r.Replica(egress_port=replica.port, instance=replica.instance) for replica in replicas]


def _replica(what: str, replica: p4r.Replica) -> Replica:
    if replica.backup_replicas:
        raise unimplemented(f"{what}: backup replicas are not offered")
    if not 0 <= replica.instance <= INSTANCE_MAX:
        raise invalid(f"{what}: instance must be 0 to {INSTANCE_MAX}, got {replica.instance}")
    return Replica(port=_port(what, replica), instance=replica.instance)


def _port(what: str, replica: p4r.Replica) -> int:
    """Return the port, given as bytes, or as the number that clients older than P4Runtime 1.4 send."""
    if replica.WhichOneof("port_kind") == "egress_port":
        return decode(encode(replica.egress_port), PORT_BITS, f"a port of {what}")
    return decode(replica.port, PORT_BITS, f"a port of {what}")
