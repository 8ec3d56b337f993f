"""The embedded switch as one object: ports, the loaded program, its tables and other state.

Thread-safe: every method may be called from any thread while packets run.  A packet sees one consistent state.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Event

from kofn_common.gso import COALESCED_BYTES, gso_works
from kofn_switch.compiler.build import Built, build_program
from kofn_switch.compiler.codegen.codegen import generate
from kofn_switch.compiler.ir.program import DROP_PORT, PORT_MAX, Target
from kofn_switch.engine.cell_controls import CellControls
from kofn_switch.engine.copy_controls import CopyControls
from kofn_switch.engine.faults import FaultRule
from kofn_switch.engine.loaded import Loaded
from kofn_switch.engine.outcomes import Outcomes
from kofn_switch.engine.ports import Ports, warner
from kofn_switch.engine.table_controls import TableControls
from kofn_switch.errors import InvalidEntry, PortError, SwitchError
from kofn_switch.native import DROP_NAMES, runtime
from kofn_switch.state.entries import Stats

LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """The packets to trace, and the file for their ways."""

    packets: int  # number of packets to trace
    file: int  # a descriptor; each packet's text is written at once
    udp_port: int = 0  # only IPv4 packets to this port; 0: every packet


class Engine(TableControls, CellControls, CopyControls, Outcomes):
    """A switch.  Tables, actions, counters and registers have the names of p4c's output: `ingress.slot.jobs`.

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
        take_outgoing: bool = False,
        gso: int = COALESCED_BYTES,
        faults: Sequence[FaultRule] = (),
        fault_seed: int = 0,
        fault_udp_port: int = 0,
        files: bool = False,
        pcap: Path | None = None,
        counts: Path | None = None,
        trace: Trace | None = None,
        dump_c: Path | None = None,
        drop_port: int = DROP_PORT,
        priority_queues: int = 1,
    ) -> None:
        """Take `ports`, from port number (0..511, not the drop port) to interface name; `start` opens the interfaces.

        Packets sent to `cpu_port` go to `take_packet_ins`. With `qdisc_bypass`, frames bypass the interfaces' queueing
        disciplines, which is faster, but wrong if an interface of the switch is shaped. With `take_outgoing`, packets
        that other programs send out of the interfaces come in as well. A coalesced packet that comes in is segmented
        (runtime/gso.h). Frames of a flow leave coalesced, at most `gso` bytes of them together; with 0 or
        `qdisc_bypass`, frames leave singly. Raises PortError.

        An interface that goes down or is removed is logged; the other ports go on.

        `faults` are injected between the interfaces and the program. If `fault_udp_port` is not 0, only IPv4 packets to
        this UDP port have faults. Each port and direction has its own random numbers, which begin again at each
        `start`: the same seed and frames give the same faults.

        With `files` there are no interfaces: frames come by `receive`, and frames for the port of interface X go to the
        pcap file X_out.pcap. `pcap` is a folder in which X_in.pcap and X_out.pcap get the frames of each interface X.
        `counts` is a file in which the ports' counters are while the switch runs, as `kofn-switch --help` says.

        With `trace`, programs are compiled so that they print the ways of packets. `dump_c` is a file for each
        program's C with its P4 lines (the log has this C at level debug).

        `drop_port` is the port that drops. As in BMv2, a packet is dropped unless its priority is below
        `priority_queues`; packets of higher priority leave a port's queues first. See `set_queue`.
        """
        _check_ports((*ports, *(() if cpu_port is None else (cpu_port,))), drop_port)
        if cpu_port is not None and cpu_port in ports:
            raise PortError(f"port {cpu_port} is the CPU port and has the interface {ports[cpu_port]}")
        self._ports = dict(ports)
        self._cpu_port = cpu_port
        self._port_down = warner(self._ports)  # the native part holds no reference to it
        if not 0 <= gso <= COALESCED_BYTES:
            raise SwitchError(f"coalesced frames must have 0 to {COALESCED_BYTES} bytes, got {gso}")
        most = -1 if files or not gso_works() else 0 if qdisc_bypass else gso
        cpu = -1 if cpu_port is None else cpu_port
        core: int = runtime().core_new(cpu, qdisc_bypass, take_outgoing, most, self._port_down) or 0
        if not core:
            raise SwitchError("not enough memory for a switch: it needs about 20 MB")
        super().__init__(core)
        self._target = Target(drop_port=drop_port, priority_queues=priority_queues, trace=trace is not None)
        self._running = False
        self._programmed = Event()
        self._io = Ports(self._core, self._ports, files=files, pcap=pcap)
        if counts is not None:
            self._io.share_counts(counts)
        self._dump_c = dump_c
        if self._native.core_open_queues(self._core, priority_queues) < 0:
            raise SwitchError("not enough memory for queues")
        self._io.set_faults(faults, fault_seed, fault_udp_port)
        if trace is not None:
            error = self._native.core_trace(self._core, trace.file, trace.packets, trace.udp_port, DROP_NAMES)
            if error < 0:
                raise SwitchError("not enough memory for a trace")

    def __del__(self) -> None:
        """Free the native part and close ports that are still open."""
        if getattr(self, "_core", None):
            self.stop()
            self._swap(None)
            self._native.core_free(self._core)

    def without_ports(self) -> "Engine":
        """Return another switch without ports that runs programs as this switch does, for trials or for `inject`."""
        return Engine(
            {},
            cpu_port=self._cpu_port,
            drop_port=self._target.drop_port,
            priority_queues=self._target.priority_queues,
        )

    @property
    def priority_queues(self) -> int:
        """The number of priority queues of each port."""
        return self._target.priority_queues

    @property
    def ports(self) -> Mapping[int, str]:
        """The interfaces, or files, by port."""
        return self._ports

    @property
    def target(self) -> Target:
        """The target that programs are compiled for."""
        return self._target

    def load(self, document: bytes) -> None:
        """Make p4c's JSON the running program and reset all state. On an error the old program stays.

        Raises ProgramError for constructs that the switch does not execute, CompilerMissing, CompileError.
        """
        self.run(build_program(document, self._target))

    def run(self, built: Built) -> None:
        """Load a program that was built for this target, as `load` does."""
        if self._dump_c is not None or LOG.isEnabledFor(logging.DEBUG):
            self._show_c(generate(built.program, replace(self._target, comments=True)))
        loaded = Loaded(built, self._core)
        with self._lock:
            self._forget_copies()
            self._swap(loaded)
        self._programmed.set()

    def reset(self) -> None:
        """Reset all state of the running program and the multicast groups. Clone sessions and value sets stay."""
        with self._lock:
            sets = {name: self._now.value_sets.get(name) for name in self._now.program.value_sets}
            self._swap(Loaded(self._now.built, self._core))
            for name, keys in sets.items():
                self._now.value_sets.replace(name, keys)
            self._forget_groups()

    @property
    def document(self) -> bytes:
        """The running program's JSON.  Raises NoProgram."""
        return self._now.built.document

    @property
    def elapsed_us(self) -> int:
        """The switch's clock, as in packets' timestamps: microseconds since the switch was made."""
        return int(self._native.core_now_us(self._core))

    def _show_c(self, text: str) -> None:
        LOG.debug("generated C:\n%s", text)
        if self._dump_c is not None:
            try:
                self._dump_c.write_text(text)
            except OSError as error:
                raise SwitchError(f"{self._dump_c} cannot be written: {error.strerror}") from error

    def wait_for_program(self, timeout_s: float) -> bool:
        """Wait up to `timeout_s` for a program, and return whether one is loaded."""
        return self._programmed.wait(timeout_s)

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

    # Packets

    def send(self, packet: bytes) -> None:
        """Process a packet as received on the CPU port (packet-out, controller header in front)."""
        if self._cpu_port is None:
            raise InvalidEntry("a packet-out needs a CPU port, got a switch without one")
        self._native.core_packet_out(self._core, packet, len(packet))

    def receive(self, port: int, frame: bytes) -> None:
        """Process a frame as received on one of the ports, with all effects: counts, faults, frames sent."""
        self._io.receive(port, frame)

    def set_queue(
        self,
        port: int | None = None,
        priority: int | None = None,
        *,
        depth: int | None = None,
        rate_pps: int | None = None,
    ) -> None:
        """Set the depth, in packets, and the rate (0: none) of a queue before egress. None means all ports or all
        priorities.

        A program that does not read its queues has no queues until this method is called, unless `priority_queues` is
        above 1.
        """
        values = (-1 if value is None else value for value in (port, priority, depth, rate_pps))
        self._native.core_set_queue(self._core, *values)

    def stats(self) -> Stats:
        """Return the counts of each port and of every reason to drop a packet."""
        return self._io.stats()

    def capture_errors(self) -> dict[tuple[int, str], str]:
        """Return the reasons for which captures ended early, by port and direction (in, out). The file's packets are
        intact, but later packets are missing."""
        return self._io.capture_errors()


def _check_ports(ports: Sequence[int], drop_port: int) -> None:
    for port in (*ports, drop_port):
        if not 0 <= port <= PORT_MAX:
            raise PortError(f"port {port} is not in 0..{PORT_MAX}")
    if drop_port in ports:
        raise PortError(f"port {drop_port} is the port that drops; choose another for one of them")
