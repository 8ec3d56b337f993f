"""What went through the switch, in words: for the end of its output and whenever SIGUSR1 asks."""

from collections.abc import Mapping, Sequence

from kofn.switch.engine.engine import Engine
from kofn.switch.engine.faults import FaultRule
from kofn.switch.state.entries import PacketTime


def fault_lines(engine: Engine, rules: Sequence[FaultRule]) -> list[str]:
    """What was injected, two lines for each port that has rules."""
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
    """A line for each port, one for the reasons of drops where there were any, one for each capture that failed."""
    stats = engine.stats()
    lines = [
        f"port {port} ({interfaces[port]}): "
        f"in {one.received_packets:,} packets, {one.received_bytes:,} bytes; "
        f"out {one.sent_packets:,} packets, {one.sent_bytes:,} bytes"
        for port, one in sorted(stats.ports.items())
    ]
    if stats.packet_time.receiving:  # there is none where files stand for interfaces
        lines.append(_time_line(stats.packet_time, sum(one.received_packets for one in stats.ports.values())))
    drops = [f"{reason} {count:,}" for reason, count in stats.drops.items() if count]
    lines += [f"dropped: {', '.join(drops)}"] if drops else []
    for (port, direction), error in engine.capture_errors().items():
        lines.append(f"capture of {interfaces[port]}, {direction}, is not complete: {error}")
    return lines


def _time_line(packet_time: PacketTime, received: int) -> str:
    """Of the thread that moves packets, by what was received; waiting is not in it."""
    parts = {"receiving": packet_time.receiving, "program": packet_time.processing, "sending": packet_time.sending}
    each = ", ".join(f"{name} {ns / received / 1000:.2f} us" for name, ns in parts.items())
    return f"time for each packet received: {each}"
