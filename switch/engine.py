"""The embedded switch as one object: ports, the loaded program, its tables and other state.

Thread-safe: every method may be called from any thread while packets run.  A packet sees one consistent state.
"""

import ctypes
import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from threading import Event, Lock

from switch.compiler.codegen import generate
from switch.compiler.program import DROP_PORT, PORTS, Program, Target
from switch.compiler.reader import read_program
from switch.entries import (
    CloneSession,
    Count,
    Digest,
    Entry,
    Key,
    Member,
    MemberGroup,
    MeterConfig,
    Replica,
    Report,
    Stats,
)
from switch.errors import EntryNotFound, InvalidEntry, NoProgram, PortError, SwitchError
from switch.faults import FaultRule
from switch.loaded import Loaded
from switch.native import DROP_NAMES, INJECT_BYTES, TAKE_BYTES, CReplica, records, runtime
from switch.ports import Ports, warner

LOG = logging.getLogger(__name__)
PORT_MAX = PORTS - 1
GROUP_MAX = 0xFFFF
INSTANCE_MAX = 0xFFFF
SESSION_MAX = 0x7FFF
LENGTH_MAX = 0xFFFFFFFF


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """Whose ways are written, and where to."""

    packets: int  # the first so many
    file: int  # a descriptor; each packet's text is written at once


class Engine:
    """A switch.  Names of tables, actions, counters and registers are those of p4c's output: `ingress.slot.jobs`.

    engine = Engine({1: "s1-eth1", 2: "s1-eth2"}, cpu_port=255)
    engine.load(Path("p4src/build/kofn.json").read_bytes())
    engine.start()
    engine.insert(Entry(table="ingress.forward.l2", key=(Exact(value=mac),), action=..., parameters=(1,)))
    """

    def __init__(
        self,
        ports: Mapping[int, str],
        *,
        cpu_port: int | None = None,
        qdisc_bypass: bool = False,
        faults: Sequence[FaultRule] = (),
        fault_seed: int = 0,
        fault_udp_port: int = 0,
        files: bool = False,
        pcap: Path | None = None,
        trace: Trace | None = None,
        dump_c: Path | None = None,
        drop_port: int = DROP_PORT,
        priority_queues: int = 1,
    ) -> None:
        """`ports`: port number (0..511, not the drop port) to interface name; the interfaces are opened by `start`.

        Packets sent to `cpu_port` go to `take_packet_ins`.  `qdisc_bypass` sends past the interfaces' queueing
        disciplines: faster, and wrong where an interface of the switch is shaped.  Raises PortError.

        An interface that goes down or is removed is logged; the other ports go on.

        `faults` are injected between the interfaces and the program, if `fault_udp_port` is not 0 only in IPv4 packets
        to this UDP port.  A port and direction has random numbers of its own: the same seed and frames have the same
        fate, from each `start` on.

        With `files` there are no interfaces: frames come by `receive`, and those for the port of interface X go to the
        pcap file X_out.pcap.  `pcap` is a folder for the frames of each interface X, X_in.pcap and X_out.pcap.

        `trace` has programs compiled that write the ways of packets; `dump_c` is a file for each program's C, with the
        P4 lines that it is from (the log has it at level debug).

        `drop_port` is the port that drops.  Packets whose priority is not below `priority_queues` are dropped, as by
        BMv2; queues are always empty here, so there is nothing else to priorities.
        """
        _check_ports((*ports, *(() if cpu_port is None else (cpu_port,))), drop_port)
        if cpu_port is not None and cpu_port in ports:
            raise PortError(f"port {cpu_port} is the CPU port and has the interface {ports[cpu_port]}")
        self._native = runtime()
        self._ports = dict(ports)
        self._cpu_port = cpu_port
        self._port_down = warner(self._ports)  # the native part holds no reference
        cpu = -1 if cpu_port is None else cpu_port
        self._core: int = self._native.core_new(cpu, qdisc_bypass, self._port_down) or 0
        if not self._core:
            raise SwitchError("not enough memory for a switch: it needs about 20 MB")
        self._lock = Lock()
        self._injecting = Lock()
        self._timeouts_changed = Event()
        self._loaded: Loaded | None = None
        self._target = Target(drop_port=drop_port, priority_queues=priority_queues, trace=trace is not None)
        self._groups: dict[int, tuple[Replica, ...]] = {}
        self._sessions: dict[int, CloneSession] = {}
        self._running = False
        self._programmed = Event()
        self._io = Ports(self._core, self._ports, files=files, pcap=pcap)
        self._dump_c = dump_c
        self._swaps = 0  # as the runtime counts them in digests
        self._io.set_faults(faults, fault_seed, fault_udp_port)
        if trace is not None and self._native.core_trace(self._core, trace.file, trace.packets, DROP_NAMES) < 0:
            raise SwitchError("not enough memory for a trace")

    def __del__(self) -> None:
        """Free the native part; ports still open are closed."""
        if getattr(self, "_core", None):
            self.stop()
            self._swap(None)
            self._native.core_free(self._core)

    def without_ports(self) -> "Engine":
        """A switch of its own that runs programs as this one does: to try things out, or for packets by `inject`."""
        return Engine(
            {},
            cpu_port=self._cpu_port,
            drop_port=self._target.drop_port,
            priority_queues=self._target.priority_queues,
        )

    @property
    def program(self) -> Program | None:
        """The loaded program's model, None before the first `load`."""
        return None if self._loaded is None else self._loaded.program

    def load(self, document: bytes) -> None:
        """Make p4c's JSON the running program, all state reset; the old program stays on an error.

        Raises ProgramError for what is not executed, CompilerMissing, CompileError.
        """
        if self._dump_c is not None or LOG.isEnabledFor(logging.DEBUG):
            self._show_c(generate(read_program(document), replace(self._target, comments=True)))
        loaded = Loaded(document, self._core, self._target)
        with self._lock:
            for group in self._groups:
                self._native.core_set_group(self._core, group, None, 0)
            for session in self._sessions:
                self._native.core_set_session(self._core, session, 0, 0, None, 0)
            self._groups.clear()
            self._sessions.clear()
            self._swap(loaded)
        self._programmed.set()

    def _show_c(self, text: str) -> None:
        LOG.debug("generated C:\n%s", text)
        if self._dump_c is not None:
            try:
                self._dump_c.write_text(text)
            except OSError as error:
                raise SwitchError(f"{self._dump_c} cannot be written: {error.strerror}") from error

    def wait_for_program(self, timeout_s: float) -> bool:
        """Whether a program is loaded; waits for it up to `timeout_s`."""
        return self._programmed.wait(timeout_s)

    def _swap(self, loaded: Loaded | None) -> None:
        before, self._loaded = self._loaded, loaded
        self._swaps += 1
        self._native.core_swap(self._core, None if loaded is None else loaded.instance)
        if before is not None:
            before.free()

    @property
    def _now(self) -> Loaded:
        if self._loaded is None:
            raise NoProgram("no program is loaded")
        return self._loaded

    def start(self) -> None:
        """Open the ports and forward packets until `stop`; without a program packets are dropped.  Idempotent.

        Raises PortError.
        """
        with self._lock:
            if self._running:
                return
            self._io.start()
            self._running = True

    def stop(self) -> None:
        """Stop forwarding and close the ports; tables and registers stay.  Idempotent."""
        with self._lock:
            if self._running:
                self._io.stop()
                self._running = False

    # Tables

    def insert(self, entry: Entry) -> None:
        """Add an entry.  Raises InvalidEntry, EntryExists, TableFull."""
        with self._lock:
            self._now.rows.insert(entry)
        if entry.idle_timeout_ns:
            self._timeouts_changed.set()

    def modify(self, entry: Entry) -> None:
        """Give an entry another action or other parameters; its counter goes on.  InvalidEntry, EntryNotFound."""
        with self._lock:
            self._now.rows.modify(entry)
        if entry.idle_timeout_ns:
            self._timeouts_changed.set()

    def delete(self, table: str, key: Key, priority: int = 0) -> None:
        """Remove an entry.  Raises InvalidEntry, EntryNotFound."""
        with self._lock:
            self._now.delete(table, key, priority)

    def entries(self, table: str, key: Key | None = None) -> list[Entry]:
        """The entries of a table (with that key), const ones included, in order of insertion; without the default."""
        with self._lock:
            return self._now.rows.entries(table, key)

    def set_default(self, table: str, action: str, parameters: Sequence[int] = ()) -> None:
        """What happens on a miss.  Raises InvalidEntry, also when the program has a const default action."""
        with self._lock:
            self._now.rows.set_default(table, action, parameters)

    def reset_default(self, table: str) -> None:
        """Back to the program's default action."""
        with self._lock:
            self._now.rows.set_default(table, None, ())

    def default(self, table: str) -> tuple[str, tuple[int, ...]] | None:
        """The default action's full name and its parameters; None: nothing is done, as in indirect tables."""
        with self._lock:
            return self._now.rows.default(table)

    def entry(self, table: str, key: Key, priority: int = 0) -> Entry:
        """The entry with that key.  Raises InvalidEntry, EntryNotFound."""
        with self._lock:
            return self._now.rows.find(table, key, priority)

    # Idle timeouts

    def take_idle(self, timeout_s: float) -> list[Entry]:
        """The entries that no packet hit for their idle timeout; waits up to `timeout_s` for the first one.

        An entry that stays idle is returned again after another timeout.
        """
        until = time.monotonic() + timeout_s
        while True:
            with self._lock:
                idle = [] if self._loaded is None else self._loaded.rows.idle.take()
                wait_s = None if self._loaded is None else self._loaded.rows.idle.wait_s()
            left_s = until - time.monotonic()
            if idle or left_s <= 0:
                return idle
            self._timeouts_changed.wait(left_s if wait_s is None else min(left_s, wait_s))
            self._timeouts_changed.clear()

    def time_since_hit(self, table: str, key: Key, priority: int = 0) -> int:
        """Nanoseconds since a packet hit the entry or it was inserted.  InvalidEntry: the table has no timeouts."""
        with self._lock:
            return self._now.rows.elapsed_ns(table, key, priority)

    # Action profiles

    def insert_member(self, member: Member) -> None:
        """Add a member to an action profile.  Raises InvalidEntry, EntryExists, TableFull."""
        with self._lock:
            self._now.rows.insert_member(member)

    def modify_member(self, member: Member) -> None:
        """Give a member another action or other parameters.  Raises InvalidEntry, EntryNotFound."""
        with self._lock:
            self._now.rows.modify_member(member)

    def delete_member(self, profile: str, member_id: int) -> None:
        """Remove a member.  Raises InvalidEntry, EntryNotFound, StillUsed."""
        with self._lock:
            self._now.rows.profile(profile).remove_member(member_id)

    def members(self, profile: str) -> list[Member]:
        """The members of an action profile, without those of entries' action sets."""
        with self._lock:
            return [member for member, _ in self._now.rows.profile(profile).members.values()]

    def insert_member_group(self, group: MemberGroup) -> None:
        """Add a group to an action profile with a selector.  Raises InvalidEntry, EntryExists, EntryNotFound."""
        with self._lock:
            self._now.rows.insert_member_group(group)

    def modify_member_group(self, group: MemberGroup) -> None:
        """Give a group other members.  Raises InvalidEntry, EntryNotFound."""
        with self._lock:
            self._now.rows.modify_member_group(group)

    def delete_member_group(self, profile: str, group_id: int) -> None:
        """Remove a group.  Raises InvalidEntry, EntryNotFound, StillUsed."""
        with self._lock:
            self._now.rows.delete_member_group(profile, group_id)

    def member_groups(self, profile: str) -> list[MemberGroup]:
        """The groups of an action profile, without those of entries' action sets."""
        with self._lock:
            return [group for group, _ in self._now.rows.profile(profile).groups.values()]

    def profile_use(self, profile: str) -> tuple[int, int]:
        """All groups and action sets together: how many members they have, and the sum of the weights."""
        with self._lock:
            return self._now.rows.profile(profile).use()

    # Meters

    def meter(self, table: str, key: Key, priority: int = 0) -> MeterConfig | None:
        """The configuration of an entry's direct meter; None: all is green.  Raises InvalidEntry, EntryNotFound."""
        with self._lock:
            return self._now.meters.read_entry(table, key, priority)

    def set_meter(self, table: str, key: Key, priority: int, config: MeterConfig | None) -> None:
        """Configure an entry's direct meter, its bursts full; errors as `meter`."""
        with self._lock:
            self._now.meters.write_entry(table, key, priority, config)

    def read_meter(self, name: str, index: int) -> MeterConfig | None:
        """The configuration of one cell of a meter array; None: all is green.  Raises InvalidEntry (index)."""
        with self._lock:
            return self._now.meters.read(name, index)

    def write_meter(self, name: str, index: int, config: MeterConfig | None) -> None:
        """Configure one cell of a meter array, its bursts full."""
        with self._lock:
            self._now.meters.write(name, index, config)

    # Counters and registers

    def count(self, table: str, key: Key, priority: int = 0) -> Count:
        """The direct counter of an entry.  Raises EntryNotFound; InvalidEntry when the table has no direct counter."""
        with self._lock:
            return self._now.read_count(self._now.count_at(table, key, priority))

    def set_count(self, table: str, key: Key, priority: int, count: Count) -> None:
        """Set the direct counter of an entry; errors as `count`."""
        with self._lock:
            self._now.write_count(self._now.count_at(table, key, priority), count)

    def default_count(self, table: str) -> Count:
        """The direct counter of the default entry: the misses."""
        with self._lock:
            return self._now.read_count(self._now.count_at(table, None, 0))

    def set_default_count(self, table: str, count: Count) -> None:
        """Set the direct counter of the default entry."""
        with self._lock:
            self._now.write_count(self._now.count_at(table, None, 0), count)

    def read_counter(self, name: str, index: int) -> Count:
        """One cell of an indirect counter.  Raises InvalidEntry (index)."""
        with self._lock:
            return self._now.read_count(self._now.counter_at(name, index))

    def write_counter(self, name: str, index: int, count: Count) -> None:
        """Set one cell of an indirect counter."""
        with self._lock:
            self._now.write_count(self._now.counter_at(name, index), count)

    def read_register(self, name: str, index: int) -> int:
        """One cell of a register array, unsigned.  Raises InvalidEntry (index)."""
        with self._lock:
            return self._now.read_register(name, index)

    def write_register(self, name: str, index: int, value: int) -> None:
        """Set one cell of a register array."""
        with self._lock:
            self._now.write_register(name, index, value)

    @property
    def target(self) -> Target:
        """What programs are compiled for."""
        return self._target

    # Value sets

    def value_set(self, name: str) -> tuple[int, ...]:
        """The keys in a parser's value set, each the fields of the select one behind the other without gaps."""
        with self._lock:
            return self._now.value_sets.get(name)

    def set_value_set(self, name: str, keys: Sequence[int]) -> None:
        """Replace the keys of a value set, all at once.  Raises UnknownObject, InvalidEntry, TableFull."""
        with self._lock:
            self._now.value_sets.replace(name, keys)

    # Multicast and clones

    def set_group(self, group: int, replicas: Sequence[Replica]) -> None:
        """Make or replace multicast group 1..65535; at least one replica.  Raises InvalidEntry."""
        if not 0 < group <= GROUP_MAX:
            raise InvalidEntry(f"multicast group {group} is not in 1..{GROUP_MAX}")
        array = _replicas(replicas)
        with self._lock:
            self._native.core_set_group(self._core, group, array, len(replicas))
            self._groups[group] = tuple(replicas)

    def delete_group(self, group: int) -> None:
        """Remove a multicast group.  Raises EntryNotFound."""
        with self._lock:
            if group not in self._groups:
                raise EntryNotFound(f"there is no multicast group {group}")
            self._native.core_set_group(self._core, group, None, 0)
            del self._groups[group]

    def group(self, group: int) -> tuple[Replica, ...]:
        """The replicas of a multicast group.  Raises EntryNotFound."""
        with self._lock:
            if group not in self._groups:
                raise EntryNotFound(f"there is no multicast group {group}")
            return self._groups[group]

    def groups(self) -> dict[int, tuple[Replica, ...]]:
        """All multicast groups."""
        with self._lock:
            return dict(self._groups)

    def set_session(self, number: int, session: CloneSession) -> None:
        """Make or replace clone session 0..32767.  Raises InvalidEntry."""
        if not 0 <= number <= SESSION_MAX:
            raise InvalidEntry(f"clone session {number} is not in 0..{SESSION_MAX}")
        if session.group and session.replicas:
            raise InvalidEntry(f"clone session {number} has a multicast group and replicas; one of both is allowed")
        if not 0 <= session.group <= GROUP_MAX or not 0 <= session.length <= LENGTH_MAX:
            raise InvalidEntry(f"{session}: group 0..{GROUP_MAX}, length 0..{LENGTH_MAX}")
        array, size = _replicas(session.replicas), len(session.replicas)
        with self._lock:
            self._native.core_set_session(self._core, number, session.group, session.length, array, size)
            self._sessions[number] = session

    def delete_session(self, number: int) -> None:
        """Remove a clone session.  Raises EntryNotFound."""
        with self._lock:
            if number not in self._sessions:
                raise EntryNotFound(f"there is no clone session {number}")
            self._native.core_set_session(self._core, number, 0, 0, None, 0)
            del self._sessions[number]

    def sessions(self) -> dict[int, CloneSession]:
        """All clone sessions."""
        with self._lock:
            return dict(self._sessions)

    # Packets, digests and messages

    def take_digests(self, timeout_s: float) -> list[Digest]:
        """The digests since the last call, oldest first; waits up to `timeout_s` for the first one.

        The switch keeps a bounded number and counts those it had to drop in `stats`.  Digests of a program that has
        been replaced since are dropped.
        """
        taken = self._take(self._native.core_take_digests, timeout_s)
        with self._lock:
            return [self._now.digest(record) for record in self._of_now(taken)]

    def take_reports(self, timeout_s: float) -> list[Report]:
        """What the program wrote to the log since the last call, as `take_digests`."""
        taken = self._take(self._native.core_take_reports, timeout_s)
        with self._lock:
            return [self._now.report(record) for record in self._of_now(taken)]

    def _of_now(self, records: Sequence[bytes]) -> list[bytes]:
        """Those of the running program, without its number in front."""
        return [record[4:] for record in records if int.from_bytes(record[:4], "little") == self._swaps]

    def take_packet_ins(self, timeout_s: float) -> list[bytes]:
        """The packets sent to the CPU port since the last call; waits up to `timeout_s` for the first one."""
        return self._take(self._native.core_take_packet_ins, timeout_s)

    def _take(self, function: Callable[..., int], timeout_s: float) -> list[bytes]:
        buffer = ctypes.create_string_buffer(TAKE_BYTES)
        size = function(self._core, buffer, TAKE_BYTES, max(0, int(timeout_s * 1000)))
        return records(ctypes.string_at(buffer, size))

    def send(self, packet: bytes) -> None:
        """Process a packet as received on the CPU port (packet-out, controller header in front)."""
        if self._cpu_port is None:
            raise InvalidEntry("a packet-out needs a CPU port; the switch was made without")
        self._native.core_send(self._core, packet, len(packet))

    def receive(self, port: int, frame: bytes) -> None:
        """Process a frame as received on one of the ports, with all that this means: counts, faults, frames sent."""
        self._io.receive(port, frame)

    def inject(self, port: int, packet: bytes) -> list[tuple[int, bytes]]:
        """Process one packet as received on `port`; returns (port, packet) of what would be sent, CPU port included.

        No sockets are involved and the ports need not exist: for tests and tools.
        """
        with self._injecting:
            size = self._native.core_inject(self._core, port, packet, len(packet), self._injected, INJECT_BYTES)
            if size < 0:
                raise SwitchError(f"a packet cannot be injected: {os.strerror(-size)}")
            collected = ctypes.string_at(self._injected, size)
        return [(int.from_bytes(one[:4], "little"), one[4:]) for one in records(collected)]

    @cached_property
    def _injected(self) -> ctypes.Array[ctypes.c_char]:
        """What the last injected packet became: megabytes, so made once and only where packets are injected."""
        return ctypes.create_string_buffer(INJECT_BYTES)

    def stats(self) -> Stats:
        """Counts of each port and of every reason to drop a packet."""
        return self._io.stats()

    def capture_errors(self) -> dict[tuple[int, str], str]:
        """Why captures ended early, by port and direction (in, out): what is in the file is whole, but not all."""
        return self._io.capture_errors()


def _check_ports(ports: Sequence[int], drop_port: int) -> None:
    for port in (*ports, drop_port):
        if not 0 <= port <= PORT_MAX:
            raise PortError(f"port {port} is not in 0..{PORT_MAX}")
    if drop_port in ports:
        raise PortError(f"port {drop_port} is the port that drops; choose another for one of both")


def _replicas(replicas: Sequence[Replica]) -> ctypes.Array[CReplica]:
    for replica in replicas:
        if not 0 <= replica.port <= PORT_MAX or not 0 <= replica.instance <= INSTANCE_MAX:
            raise InvalidEntry(f"{replica}: port 0..{PORT_MAX}, instance 0..{INSTANCE_MAX}")
    return (CReplica * max(1, len(replicas)))(*(CReplica(one.port, one.instance) for one in replicas))
