"""An Executor's control methods over P4Runtime for BMv2; methods that its server lacks raise Unsupported."""

import contextlib
import queue
import threading
from collections.abc import Iterator, Sequence
from typing import Any

from finsy.proto import U128, p4i, p4r

from kofn_switch.compiler.ir.program import Program
from kofn_switch.p4runtime.cells import encode_config
from kofn_switch.state.entries import (
    CloneSession,
    Count,
    Digest,
    Entry,
    Exact,
    GroupRef,
    Lpm,
    Match,
    Member,
    MemberGroup,
    MemberRef,
    MeterConfig,
    Optional,
    Range,
    Replica,
    Ternary,
    Via,
)
from tests.switch.suite.unsupported import NoRegisters, Unsupported

TIMEOUT_S = 20


def minimal(value: int) -> bytes:
    """Return a number's bytes as P4Runtime writes them."""
    return value.to_bytes(max(1, (value.bit_length() + 7) // 8), "big")


class Bmv2Control:
    """A P4Runtime client with the names of p4c's output; `info` is the program's P4Info."""

    def __init__(self, *, stub: Any, device_id: int) -> None:
        """Start without a stream; `primary` opens one."""
        self.stub = stub
        self.device_id = device_id
        self.election_id = 1
        self.info = p4i.P4Info()
        self.program: Program | None = None
        self._groups: dict[int, tuple[Replica, ...]] = {}
        self._sessions: set[int] = set()
        self._digests: queue.Queue[Any] = queue.Queue()

    @contextlib.contextmanager
    def primary(self) -> Iterator[None]:
        """Be the primary; digests are collected meanwhile."""
        requests: queue.Queue[Any] = queue.Queue()
        arbitration = p4r.MasterArbitrationUpdate(device_id=self.device_id, election_id=U128.encode(self.election_id))
        requests.put(p4r.StreamMessageRequest(arbitration=arbitration))
        stream = self.stub.StreamChannel(iter(requests.get, None))
        next(stream)
        reader = threading.Thread(target=self._collect, args=(stream, requests), daemon=True)
        reader.start()
        try:
            yield
        finally:
            requests.put(None)
            stream.cancel()
            reader.join(TIMEOUT_S)

    def _collect(self, stream: Any, requests: "queue.Queue[Any]") -> None:
        with contextlib.suppress(Exception):  # the stream ends with the test
            for message in stream:
                if message.WhichOneof("update") == "digest":
                    self._digests.put(message.digest)
                    ack = p4r.DigestListAck(digest_id=message.digest.digest_id, list_id=message.digest.list_id)
                    requests.put(p4r.StreamMessageRequest(digest_ack=ack))

    def _write(self, kind: str, **entity: Any) -> None:
        update = p4r.Update(type=p4r.Update.Type.Value(kind), entity=p4r.Entity(**entity))
        request = p4r.WriteRequest(device_id=self.device_id, updates=[update])
        request.election_id.CopyFrom(U128.encode(self.election_id))
        self.stub.Write(request, timeout=TIMEOUT_S)

    def _read(self, **entity: Any) -> list[Any]:
        request = p4r.ReadRequest(device_id=self.device_id, entities=[p4r.Entity(**entity)])
        return [found for response in self.stub.Read(request, timeout=TIMEOUT_S) for found in response.entities]

    def _object(self, kind: str, name: str) -> Any:
        return next(item for item in getattr(self.info, kind) if item.preamble.name == name)

    # Tables

    def insert(self, entry: Entry) -> None:
        self._write("INSERT", table_entry=self._entry(entry))

    def _entry(self, entry: Entry) -> p4r.TableEntry:
        table = self._object("tables", entry.table)
        fields = zip(table.match_fields, entry.key, strict=True)
        match = [found for field, one in fields if (found := _match(field, one)) is not None]
        action = self._via(entry.via) if entry.via is not None else self._action(entry.action, entry.parameters)
        return p4r.TableEntry(table_id=table.preamble.id, match=match, priority=entry.priority, action=action)

    def _action(self, name: str, parameters: Sequence[int]) -> p4r.TableAction:
        action = self._object("actions", name)
        pairs = zip(action.params, parameters, strict=True)
        params = [p4r.Action.Param(param_id=param.id, value=minimal(value)) for param, value in pairs]
        return p4r.TableAction(action=p4r.Action(action_id=action.preamble.id, params=params))

    def set_default(self, table: str, action: str, parameters: Sequence[int] = ()) -> None:
        number = self._object("tables", table).preamble.id
        told = p4r.TableEntry(table_id=number, action=self._action(action, parameters), is_default_action=True)
        self._write("MODIFY", table_entry=told)

    # Action profiles

    def _via(self, via: Via) -> p4r.TableAction:
        match via:
            case MemberRef(member=number):
                return p4r.TableAction(action_profile_member_id=number)
            case GroupRef(group=number):
                return p4r.TableAction(action_profile_group_id=number)
        raise Unsupported("action sets are not for scripts")

    def insert_member(self, member: Member) -> None:
        profile = self._object("action_profiles", member.profile).preamble.id
        action = self._action(member.action, member.parameters).action
        told = p4r.ActionProfileMember(action_profile_id=profile, member_id=member.id, action=action)
        self._write("INSERT", action_profile_member=told)

    def insert_member_group(self, group: MemberGroup) -> None:
        profile = self._object("action_profiles", group.profile).preamble.id
        members = [p4r.ActionProfileGroup.Member(member_id=one.member, weight=one.weight) for one in group.members]
        told = p4r.ActionProfileGroup(action_profile_id=profile, group_id=group.id, members=members)
        told.max_size = len(members)
        self._write("INSERT", action_profile_group=told)

    # Groups and sessions

    def forget_copies(self) -> None:
        """Remove groups and sessions: BMv2 keeps their copies through a push, but forgets that they exist."""
        for group in self._groups:
            self._write("DELETE", packet_replication_engine_entry=_group(group, ()))
        for session in self._sessions:
            self._write("DELETE", packet_replication_engine_entry=_session(session, ()))
        self._groups.clear()
        self._sessions.clear()

    def set_group(self, group: int, replicas: Sequence[Replica]) -> None:
        kind = "MODIFY" if group in self._groups else "INSERT"
        self._write(kind, packet_replication_engine_entry=_group(group, replicas))
        self._groups[group] = tuple(replicas)

    def set_session(self, number: int, session: CloneSession) -> None:
        """Set a session with the group's present replicas, since BMv2's sessions do not refer to groups."""
        if session.length:
            raise Unsupported("BMv2's clone sessions do not truncate")
        kind = "MODIFY" if number in self._sessions else "INSERT"
        replicas = session.replicas or self._groups.get(session.group, ())
        self._write(kind, packet_replication_engine_entry=_session(number, replicas))
        self._sessions.add(number)

    # Cells

    def read_counter(self, name: str, index: int) -> Count:
        number = self._object("counters", name).preamble.id
        told = p4r.CounterEntry(counter_id=number, index=p4r.Index(index=index))
        data = self._read(counter_entry=told)[0].counter_entry.data
        return Count(packets=data.packet_count, bytes=data.byte_count)

    def write_counter(self, name: str, index: int, count: Count) -> None:
        number = self._object("counters", name).preamble.id
        data = p4r.CounterData(packet_count=count.packets, byte_count=count.bytes)
        self._write(
            "MODIFY", counter_entry=p4r.CounterEntry(counter_id=number, index=p4r.Index(index=index), data=data)
        )

    def read_register(self, name: str, index: int) -> int:
        raise NoRegisters("BMv2's P4Runtime has no registers")

    def write_register(self, name: str, index: int, value: int) -> None:
        raise NoRegisters("BMv2's P4Runtime has no registers")

    def write_meter(self, name: str, index: int, config: MeterConfig | None) -> None:
        number = self._object("meters", name).preamble.id
        told = p4r.MeterEntry(meter_id=number, index=p4r.Index(index=index))
        if (configured := encode_config(config)) is not None:
            told.config.CopyFrom(configured)
        self._write("MODIFY", meter_entry=told)

    def set_value_set(self, name: str, keys: Sequence[int]) -> None:
        raise Unsupported("BMv2's P4Runtime has no value sets")

    # Digests

    def watch_digests(self) -> None:
        """Enable every digest without batching."""
        for digest in self.info.digests:
            config = p4r.DigestEntry.Config(max_timeout_ns=0, max_list_size=1, ack_timeout_ns=0)
            self._write("INSERT", digest_entry=p4r.DigestEntry(digest_id=digest.preamble.id, config=config))

    def take_digests(self, timeout_s: float) -> list[Digest]:
        """Wait for the next digests and return them."""
        try:
            found = self._digests.get(timeout=timeout_s)
        except queue.Empty:
            return []
        item = next(one for one in self.info.digests if one.preamble.id == found.digest_id)
        return [Digest(name=item.preamble.name, fields=_fields(data)) for data in found.data]


def _match(field: Any, match: Match) -> p4r.FieldMatch | None:
    """Return a field's match; None: any value."""
    told = p4r.FieldMatch(field_id=field.id)
    match match:
        case Exact(value=value):
            told.exact.value = minimal(value)
        case Lpm(value=value, prefix_length=length) if length:
            told.lpm.value, told.lpm.prefix_len = minimal(value), length
        case Ternary(value=value, mask=mask) if mask:
            if field.match_type == p4i.MatchField.OPTIONAL:
                told.optional.value = minimal(value)
            else:
                told.ternary.value, told.ternary.mask = minimal(value), minimal(mask)
        case Range(low=low, high=high) if (low, high) != (0, (1 << field.bitwidth) - 1):
            told.range.low, told.range.high = minimal(low), minimal(high)
        case Optional(value=value) if value is not None:
            told.optional.value = minimal(value)
        case _:
            return None
    return told


def _group(number: int, replicas: Sequence[Replica]) -> p4r.PacketReplicationEngineEntry:
    told = p4r.MulticastGroupEntry(multicast_group_id=number, replicas=_replicas(replicas))
    return p4r.PacketReplicationEngineEntry(multicast_group_entry=told)


def _session(number: int, replicas: Sequence[Replica]) -> p4r.PacketReplicationEngineEntry:
    told = p4r.CloneSessionEntry(session_id=number, replicas=_replicas(replicas))
    return p4r.PacketReplicationEngineEntry(clone_session_entry=told)


def _replicas(replicas: Sequence[Replica]) -> list[p4r.Replica]:
    return [p4r.Replica(egress_port=one.port, instance=one.instance) for one in replicas]


def _fields(data: Any) -> tuple[int, ...]:
    members = data.struct.members if data.WhichOneof("data") == "struct" else [data]
    return tuple(int.from_bytes(member.bitstring, "big") for member in members)
