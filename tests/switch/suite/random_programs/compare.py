"""Runs one random program on two executors and compares them."""

from collections.abc import Iterable
from typing import Any

from kofn_switch.compiler.ir.program import Table
from kofn_switch.engine.engine import Engine
from kofn_switch.state.entries import Count
from tests.switch.reference import ReferenceEngine
from tests.switch.suite.executor import Executor
from tests.switch.suite.random_programs.actions import CELLS
from tests.switch.suite.random_programs.program import RandomProgram


def sent(executor: Executor, packet: tuple[int, bytes]) -> list[tuple[int, str]]:
    """Return the outputs of a packet, sorted by port, since the order between ports is unspecified."""
    return [(port, data.hex()) for port, data in sorted(executor.inject(*packet), key=lambda item: item[0])]


def outcome(executor: Executor, packet: tuple[int, bytes]) -> dict[str, Any]:
    """Return all effects of a packet."""
    return {
        "sent": sent(executor, packet),
        "digests": executor.take_digests(0),
        "reports": executor.take_reports(0),
        "register": [executor.read_register("register", cell) for cell in range(CELLS)],
        "direct": [_direct(executor, table) for table in _tables(executor) if table.counted],
        "counter": [executor.read_counter("counter", cell) for cell in range(CELLS)],
    }


def _tables(executor: Executor) -> tuple[Table, ...]:
    assert executor.program is not None
    return executor.program.tables


def _direct(executor: Executor, table: Table) -> list[Count]:
    """Return the counters of the entries and of the default entry."""
    entries = executor.entries(table.name)
    counts = [executor.count(table.name, entry.key, entry.priority) for entry in entries]
    return [*counts, executor.default_count(table.name)]


def differences(program: RandomProgram, packets: Iterable[tuple[int, bytes]]) -> list[str]:
    """Return the differences between native engine and reference, packet by packet; empty if there are none."""
    both: list[Executor] = [Engine({}), ReferenceEngine()]
    for executor in both:
        program.prepare(executor)
    for number, packet in enumerate(packets):
        native, reference = (outcome(executor, packet) for executor in both)
        if native != reference:
            port, data = packet
            differing = [key for key in native if native[key] != reference[key]]
            lines = [f"packet {number}, port {port}: {data.hex()}"]
            lines += [f"{key}: native {native[key]}, reference {reference[key]}" for key in differing]
            return lines
    return []
