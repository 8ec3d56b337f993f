"""The ports of a running switch: interfaces, or pcap files in their place; captures, injected faults, counts.

Only one thread at a time may call the methods (the engine serialises control operations). The packet thread may run
meanwhile.
"""

import ctypes
import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from kofn_switch import structs
from kofn_switch.engine.faults import FaultRule, native_rules
from kofn_switch.errors import FaultError, PortError, SwitchError
from kofn_switch.native import DROPS, PORT_DOWN, runtime
from kofn_switch.state.entries import FaultCounts, PacketTime, PortStats, Stats

LOG = logging.getLogger(__name__)
DIRECTIONS = ("in", "out")  # enum fault_direction of runtime/faults.h


def pcap_file(interface: str, direction: str) -> str:
    """Return the name of an interface's pcap file, as in BMv2; `direction` is in or out, as the switch sees it."""
    return f"{interface}_{direction}.pcap"


def warner(interfaces: Mapping[int, str]) -> Any:
    """Return the function that the packet thread calls when a port's interface goes down."""

    def warn(port: int) -> None:
        name = interfaces[port]
        LOG.warning("port %d: interface %s is down or gone; packets to it count as 'send failed'", port, name)

    return PORT_DOWN(warn)


class Ports:
    """The ports of the runtime's `core`."""

    def __init__(self, core: int, interfaces: Mapping[int, str], *, files: bool, pcap: Path | None) -> None:
        self._native = runtime()
        self._core = core
        self._interfaces = interfaces
        self._files = files
        self._pcap = pcap

    def set_faults(self, rules: Sequence[FaultRule], seed: int, udp_port: int) -> None:
        for rule in rules:
            if rule.port not in self._interfaces:
                raise FaultError(f"fault {rule}: there is no port {rule.port}; there are {self._known}")
        if rules:
            array, numbers, count = native_rules(rules)
            if self._native.core_set_faults(self._core, array, len(rules), numbers, count, seed, udp_port) < 0:
                raise SwitchError("not enough memory for the rules for injected faults")

    def share_counts(self, path: Path) -> None:
        """Count in this file from now on. Raise PortError if it cannot be written."""
        result = self._native.core_share_counts(self._core, os.fsencode(path))
        if result < 0:
            raise PortError(f"the counters' file {path} cannot be written: {os.strerror(-result)}")

    @property
    def _known(self) -> str:
        return ", ".join(map(str, self._interfaces)) or "none"

    def start(self) -> None:
        """Open all ports and start the packet thread. Raise PortError, and then leave no port open."""
        for port, interface in self._interfaces.items():
            if self._files:
                self._open_file(port, pcap_file(interface, "out"))
            else:
                self._open(port, interface)
        self._check(self._native.core_start(self._core), "the packet thread cannot be started")

    def _open_file(self, port: int, path: str) -> None:
        self._check(
            self._native.core_open_file(self._core, port, os.fsencode(path)), f"port {port}: {path} cannot be written"
        )

    def _open(self, port: int, interface: str) -> None:
        result = self._native.core_open_port(self._core, port, interface.encode())
        self._check(result, f"port {port}: interface {interface} cannot be opened")
        for number, direction in enumerate(DIRECTIONS if self._pcap is not None else ()):
            path = Path(self._pcap or "", pcap_file(interface, direction))
            result = self._native.core_capture(self._core, number, port, os.fsencode(path))
            self._check(result, f"port {port}: {path} cannot be written")

    def _check(self, result: int, what: str) -> None:
        if result < 0:
            self._native.core_close_ports(self._core)
            raise PortError(f"{what}: {os.strerror(-result)}")

    def stop(self) -> None:
        """End the packet thread and close all ports."""
        self._native.core_stop(self._core)
        self._native.core_close_ports(self._core)

    def receive(self, port: int, frame: bytes) -> None:
        if port not in self._interfaces:
            raise PortError(f"there is no port {port}; there are {self._known}")
        self._native.core_receive(self._core, port, frame, len(frame))

    def stats(self) -> Stats:
        ports: dict[int, PortStats] = {}
        drops = (ctypes.c_uint64 * len(DROPS))()
        for port in self._interfaces or {0: ""}:
            four = (ctypes.c_uint64 * 4)()
            self._native.core_stats(self._core, port, four, drops)
            if port in self._interfaces:
                ports[port] = PortStats(
                    received_packets=four[0],
                    received_bytes=four[1],
                    sent_packets=four[2],
                    sent_bytes=four[3],
                    faults_in=self._fault_counts(port, 0),
                    faults_out=self._fault_counts(port, 1),
                )
        return Stats(ports=ports, drops=dict(zip(DROPS, drops, strict=True)), packet_time=self._packet_time())

    def _packet_time(self) -> PacketTime:
        packet_time = structs.PacketTime()
        self._native.core_packet_time(self._core, packet_time)
        return PacketTime(
            receiving=packet_time.receiving, processing=packet_time.processing, sending=packet_time.sending
        )

    def _fault_counts(self, port: int, direction: int) -> FaultCounts:
        """Return the counts of a port and direction; 0 is into the switch."""
        counts = structs.FaultCounts()
        self._native.core_fault_counts(self._core, port, direction, counts)
        return FaultCounts(**{field.name: getattr(counts, field.name) for field in fields(FaultCounts)})

    def capture_errors(self) -> dict[tuple[int, str], str]:
        found = {
            (port, direction): self._native.core_capture_error(self._core, number, port)
            for port in self._interfaces
            for number, direction in enumerate(DIRECTIONS)
        }
        return {at: os.strerror(error) for at, error in found.items() if error}
