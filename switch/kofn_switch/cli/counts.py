"""The switch's counters as text, printed at its end and after SIGUSR1."""

from collections.abc import Mapping, Sequence

from kofn_switch.engine.engine import Engine
from kofn_switch.engine.faults import FaultRule
from kofn_switch.state.entries import PacketTime


def fault_lines(engine: Engine, rules: Sequence[FaultRule]) -> list[str]:
    """Return the injected faults, two lines for each port that has rules."""
    ports = engine.stats().ports
    return [
        line
        for port in sorted({rule.port for rule in rules})
        for line in (
            f"injected at port {port}, in: {ports[port].faults_in}",
            f"injected at port {port}, out: {ports[port].faults_out}",
        )
    ]


def count_lines(engine: Engine, interfaces: Mapping[int, str]) -> list[str]:
    """Return a line for each port, one for drops if there were any, and one for each capture that failed."""
    stats = engine.stats()
    lines = [
        f"port {port} ({interfaces[port]}): "
        f"in {traffic.received_packets:,} packets, {traffic.received_bytes:,} bytes; "
        f"out {traffic.sent_packets:,} packets, {traffic.sent_bytes:,} bytes"
        for port, traffic in sorted(stats.ports.items())
    ]
    if stats.packet_time.receiving:  # with pcap files instead of interfaces this is 0
        lines.append(_time_line(stats.packet_time, sum(traffic.received_packets for traffic in stats.ports.values())))
    drops = [f"{reason} {count:,}" for reason, count in stats.drops.items() if count]
    lines += [f"dropped: {', '.join(drops)}"] if drops else []
    for (port, direction), error in engine.capture_errors().items():
        lines.append(f"capture of {interfaces[port]}, {direction}, is not complete: {error}")
    return lines


def _time_line(packet_time: PacketTime, received: int) -> str:
    """Return the packet thread's time for each packet received, without waiting."""
    parts = {"receiving": packet_time.receiving, "program": packet_time.processing, "sending": packet_time.sending}
    each = ", ".join(f"{name} {ns / received / 1000:.2f} us" for name, ns in parts.items())
    return f"time for each packet received: {each}"
