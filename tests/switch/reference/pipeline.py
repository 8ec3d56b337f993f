"""A packet's way through parser, ingress, queues, egress and deparser, with all its copies.

Packets that the switch sends to itself wait in one queue, those for egress in another. Each packet is processed with
all its copies before the next.
"""

from collections import deque
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field

from kofn_switch.compiler.ir.program import PORTS, Pipeline, Table
from kofn_switch.errors import SwitchError
from kofn_switch.state.entries import CloneSession, Digest, Replica, Via
from tests.switch.reference.actions import execute
from tests.switch.reference.call import CallContext
from tests.switch.reference.hashes import is_wrong, update
from tests.switch.reference.packet import Headers, Packet, undefined, wrap
from tests.switch.reference.parser import Parser
from tests.switch.reference.profiles import Chosen, ReferenceProfile
from tests.switch.reference.tables import ReferenceTable

NORMAL, INGRESS_CLONE, EGRESS_CLONE, RECIRCULATED, REPLICATED, RESUBMITTED = 0, 1, 2, 4, 5, 6  # instance_type
PASSES_MAX = 1000  # passes of one packet through ingress


@dataclass(slots=True, kw_only=True)
class Controlled:
    """The control plane's state: tables, profiles, groups, sessions, value sets."""

    tables: Mapping[str, ReferenceTable]
    profiles: Mapping[str, ReferenceProfile]
    groups: Mapping[int, tuple[Replica, ...]]
    sessions: Mapping[int, CloneSession]
    value_sets: Mapping[str, Set[int]]


@dataclass(slots=True)
class Outcome:
    """The results of one packet: packets by port in their order, digests, and the reasons of drops."""

    sent: list[tuple[int, bytes]] = field(default_factory=list)
    digests: list[Digest] = field(default_factory=list)
    drops: list[str] = field(default_factory=list)


class PacketRun:
    """One packet with all its copies."""

    def __init__(self, around: CallContext, controlled: Controlled) -> None:
        self._around = around
        self._program = around.program
        self._controlled = controlled
        self._arriving: deque[Packet] = deque()
        self._leaving: deque[tuple[int, Packet]] = deque()
        self.outcome = Outcome()

    def run(self, port: int, data: bytes) -> Outcome:
        """Process a packet as received on a port."""
        packet = self._new(port, data)
        packet.headers.set_meta("ingress_port", port)
        packet.headers.set_meta("packet_length", len(data))
        packet.headers.set_meta("ingress_global_timestamp", self._around.now_us())
        self._arriving.append(packet)
        passes = 0
        while self._arriving:
            passes += 1
            if passes > PASSES_MAX:
                raise SwitchError(f"a packet came back to ingress {PASSES_MAX} times")
            self._ingress(self._arriving.popleft())
            while self._leaving:
                self._egress(*self._leaving.popleft())
        return self.outcome

    def _new(self, port: int, data: bytes) -> Packet:
        return Packet(
            port=port, arrived=data, headers=Headers(self._program), size=len(data), rest=data, counted=len(data)
        )

    def _parse(self, packet: Packet) -> None:
        error = Parser(self._around, packet, self._controlled.value_sets).run()
        scope = self._around.scope(packet)
        wrong = any(is_wrong(checksum, scope, packet) for checksum in self._program.checksums)
        packet.headers.set_meta("parser_error", error)
        packet.headers.set_meta("checksum_error", int(wrong))

    # Ingress

    def _ingress(self, packet: Packet) -> None:
        self._parse(packet)
        self._control(self._program.ingress, packet)
        if packet.failed:
            self.outcome.drops.append("assertion failed")
            return
        packet.exited = False
        if packet.clone is not None:
            self._clone_arrived(packet, *packet.clone)
        if packet.digest is not None:
            self._learn(packet, packet.digest)
        if packet.resubmit is not None:
            self._resubmit(packet, packet.resubmit)
            return
        self._switch(packet)

    def _switch(self, packet: Packet) -> None:
        """Send the packet to the replicas of its group, or to its port."""
        packet.clone = None
        group, port = packet.headers.meta["mcast_grp"], packet.headers.meta["egress_spec"]
        if group != 0:
            packet.headers.set_meta("instance_type", REPLICATED)
            self._replicate_group(packet, group)
        elif port == self._around.target.drop_port:
            self.outcome.drops.append("ingress")
        else:
            packet.headers.set_meta("instance_type", NORMAL)
            self._enqueue(port, packet)

    def _replicate_group(self, packet: Packet, group: int) -> None:
        if group in self._controlled.groups:
            self._replicate(packet, self._controlled.groups[group])
        else:
            self.outcome.drops.append("unknown group")

    def _replicate(self, packet: Packet, replicas: Sequence[Replica], limit: int | None = None) -> None:
        """Send a copy to each replica, not truncated unless there is a `limit`."""
        for replica in replicas:
            copy = packet.copy(packet.headers.copy())
            copy.limit = limit
            copy.headers.set_meta("egress_rid", replica.instance)
            self._enqueue(replica.port, copy)

    def _enqueue(self, port: int, packet: Packet) -> None:
        if packet.headers.meta["priority"] >= self._around.target.priority_queues:
            self.outcome.drops.append("priority")
            return
        packet.headers.set_meta("enq_timestamp", self._around.now_us())
        packet.headers.set_meta("enq_qdepth", 0)
        self._leaving.append((port, packet))

    def _clone_arrived(self, packet: Packet, number: int, fields: int) -> None:
        """Clone the packet as it arrived, parsed again, with the kept fields' current values."""
        session = self._controlled.sessions.get(number)
        if session is None:
            return
        copy = self._new(packet.port, packet.arrived)
        copy.headers.set_meta("ingress_port", packet.port)
        self._parse(copy)
        self._send_clone(session, self._keep(packet, copy, fields, INGRESS_CLONE))

    def _keep(self, packet: Packet, copy: Packet, fields: int, kind: int) -> Packet:
        """Zero the copy's metadata, except the kept fields and the kind of the copy."""
        copy.headers.reset_metadata()
        if fields not in self._program.field_lists:
            undefined(f"field list {fields}")
        for kept in self._program.field_lists[fields].fields:
            copy.headers[kept.header].set(kept.field, packet.headers[kept.header].get(kept.field))
        copy.headers.set_meta("instance_type", kind)
        return copy

    def _send_clone(self, session: CloneSession, copy: Packet) -> None:
        replicas = session.replicas or self._controlled.groups.get(session.group, ())
        self._replicate(copy, replicas, session.length or None)

    def _learn(self, packet: Packet, number: int) -> None:
        """Send a digest with the fields' values at the end of ingress."""
        scope = self._around.scope(packet)
        for learn in self._program.digests:
            if learn.id == number:
                pairs = zip(learn.elements, learn.widths, strict=True)
                fields = tuple(wrap(scope.value(element), width) for element, width in pairs)
                self.outcome.digests.append(Digest(name=learn.name, fields=fields))

    def _resubmit(self, packet: Packet, fields: int) -> None:
        """Process the packet again as it arrived, with the kept fields."""
        again = self._keep(packet, self._new(packet.port, packet.arrived), fields, RESUBMITTED)
        again.headers.set_meta("packet_length", len(packet.arrived))
        self._arriving.append(again)

    # Egress

    def _egress(self, port: int, packet: Packet) -> None:
        headers = packet.headers
        now = self._around.now_us()
        headers.set_meta("egress_global_timestamp", now)
        headers.set_meta("deq_timedelta", now - headers.meta["enq_timestamp"])
        headers.set_meta("deq_qdepth", 0)
        headers.set_meta("egress_port", port)
        headers.set_meta("egress_spec", (self._around.target.drop_port + 1) % PORTS)
        headers.set_meta("packet_length", packet.size)
        self._control(self._program.egress, packet)
        if packet.failed:
            self.outcome.drops.append("assertion failed")
            return
        if packet.clone is not None:
            self._clone_leaving(packet, *packet.clone)
        if headers.meta["egress_spec"] == self._around.target.drop_port:
            self.outcome.drops.append("egress")
            return
        data = self._deparse(packet)
        if packet.recirculate is not None:
            self._recirculate(packet, data, packet.recirculate)
        else:
            self.outcome.sent.append((port, data if packet.limit is None else data[: packet.limit]))

    def _clone_leaving(self, packet: Packet, number: int, fields: int) -> None:
        """Clone the packet as it is after egress, before the deparser; the clone goes through egress."""
        session = self._controlled.sessions.get(number)
        if session is not None:
            copy = packet.copy(packet.headers.copy())
            self._send_clone(session, self._keep(packet, copy, fields, EGRESS_CLONE))

    def _deparse(self, packet: Packet) -> bytes:
        """Update checksums, run the deparser's statements, then emit the valid headers and the payload."""
        update(self._program.checksums, self._around.scope(packet), packet)
        execute(self._around, packet, self._program.deparser_statements, ())
        valid = [packet.headers[name] for name in self._program.deparser if packet.headers[name].valid]
        return b"".join(header.emit() for header in valid) + packet.rest

    def _recirculate(self, packet: Packet, data: bytes, fields: int) -> None:
        """Process the packet again as it would leave, not truncated."""
        again = self._keep(packet, self._new(packet.port, data), fields, RECIRCULATED)
        again.headers.set_meta("packet_length", len(data))
        self._arriving.append(again)

    # Controls

    def _control(self, pipeline: Pipeline, packet: Packet) -> None:
        """Go from node to node until none follows or the program exits."""
        name = pipeline.start
        while name is not None and not packet.exited and not packet.failed:
            if name in pipeline.conditions:
                condition = pipeline.conditions[name]
                holds = self._around.scope(packet).truth(condition.expression)
                name = condition.then if holds else condition.otherwise
            else:
                name = self._apply(pipeline.tables[name], packet)

    def _apply(self, table: Table, packet: Packet) -> str | None:
        """Look up, count, run the action; the next node depends on hit and miss, or on the action."""
        known, scope = self._controlled.tables[table.name], self._around.scope(packet)
        row = known.look_up(scope)
        if table.counted:
            (known.misses if row is None else row.cell).count(packet)
        if table.meter is not None and row is not None:
            scope.assign(table.meter.target, row.meter.run(packet.counted, self._around.now_us()))
        run = known.action(row, lambda via: self._choose(table, via, packet))
        if run is not None:
            execute(self._around, packet, run[0].primitives, run[1])
        if table.next_on_hit is not None:
            return table.next_on_hit[0 if row is not None else 1]
        return table.next_default if run is None else table.next.get(run[0].id)

    def _choose(self, table: Table, via: Via, packet: Packet) -> Chosen | None:
        return self._controlled.profiles[str(table.profile)].choose(via, self._around.scope(packet), packet)
