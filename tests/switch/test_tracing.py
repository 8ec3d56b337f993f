"""Traces of packets as text, and the generated C with its P4 lines, of programs/rules.p4."""

import logging
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from kofn_switch.compiler.codegen.codegen import generate
from kofn_switch.compiler.reader.reader import read_program
from kofn_switch.engine.engine import Engine, Trace
from kofn_switch.errors import SwitchError
from kofn_switch.state.entries import Entry, Range, Replica, Ternary
from tests.switch.suite.runner import Run
from tests.switch.suite.stf import Packet, parse, ports_of
from tests.switch.suite.targets import Injected
from tests.switch.suite.test_suite import SCRIPTS
from tests.switch.test_rules import BIG, PROGRAM, entry, exact, request


@dataclass(kw_only=True)
class Traced:
    """An engine that traces a hundred packets."""

    engine: Engine
    path: Path

    def way(self, packet: bytes) -> list[str]:
        """Return the trace of one packet; nothing else may be written."""
        before = len(self.path.read_text())
        self.engine.inject(7, packet)
        return self.path.read_text()[before:].splitlines()


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Traced]:
    path = tmp_path_factory.mktemp("trace") / "trace.txt"
    with path.open("wb") as file:
        engine = Engine({}, cpu_port=255, trace=Trace(packets=100, file=file.fileno()))
        engine.load(PROGRAM)
        yield Traced(engine=engine, path=path)


def test_packet_is_traced_from_parser_to_port(traced: Traced) -> None:
    lines = traced.way(request(0x23, 2, 0xAB, b"rest"))
    assert re.fullmatch(r"packet \d+ at port 7, 29 bytes", lines[0])
    assert lines[1:6] == [
        "  23000000020000000000000000000000",
        "  0000000000000000ab72657374",
        "  state start",
        "    extract request op=0x23 value=0x2 result=0x0 wide=0xab",
        "    tmp = 0x1",
    ]
    assert "  rules.p4:122 if (hdr.request.op == 0x22) false" in lines
    at = lines.index("  rules.p4:123 if (hdr.request.op == 0x23) true")
    assert lines[at + 1 : at + 4] == [
        "    rules.p4:123 standard_metadata.egress_spec = 0x2",
        "    rules.p4:139 request.value = 0x3",
        "egress_port 0x2",
    ]
    assert lines[-2:] == ["out of port 2, 29 bytes", ""]


def test_tables_trace_key_entry_and_action(traced: Traced) -> None:
    traced.engine.insert(entry("by_exact", exact(5, BIG), 50))
    key = (Ternary(value=4, mask=0xFC), Ternary(value=0, mask=0))
    traced.engine.insert(entry("by_ternary", key, 60, priority=1))
    ranges = Entry(
        table="ingress.by_range",
        key=(Range(low=16, high=31), exact(4, 0)[0]),
        priority=1,
        action="ingress.result",
        parameters=(70,),
    )
    traced.engine.insert(ranges)
    wide = "hdr.request.wide=0x80000000000000000000000000000005"
    found = f"  table ingress.by_exact: hdr.request.value=0x5 {wide} hit -> ingress.result(value=0x32)"
    missed = "  table ingress.by_exact: hdr.request.value=0x6 hdr.request.wide=0x0 miss -> ingress.result(value=0x1)"
    ternary = "hdr.request.value=0x7 hdr.request.wide=0x1 hit 0x4/&0xfc 0x0/&0x0 -> ingress.result(value=0x3c)"
    assert found in traced.way(request(1, 5, BIG))
    assert missed in traced.way(request(1, 6))
    assert f"  table ingress.by_ternary: {ternary}" in traced.way(request(3, 7, 1))
    between = "hdr.request.value=0x12 hdr.request.op=0x4 hit 0x10..0x1f 0x4/&0xff -> ingress.result(value=0x46)"
    assert f"  table ingress.by_range: {between}" in traced.way(request(4, 18))


def test_registers_and_counters_trace_cell_and_value(traced: Traced) -> None:
    assert "    rules.p4:110 register_write ingress.cells[0x3] = 0xabc" in traced.way(request(0x10, 3, 0xABC))
    assert "    rules.p4:113 register_read ingress.cells[0x3] cell_0 = 0xabc" in traced.way(request(0x11, 3))
    long = (0x11 << 120) + 7
    written = traced.way(request(0x12, 1, long))
    assert "    rules.p4:116 register_write ingress.wides[0x1] = 0x11000000000000000000000000000007" in written
    assert "    rules.p4:118 count ingress.counts[0x2]" in traced.way(request(0x14, 2))


def test_fate_of_packets_is_traced(traced: Traced) -> None:
    traced.engine.set_group(5, [Replica(port=3), Replica(port=7), Replica(port=4)])
    lines = traced.way(request(0x20, 5))
    assert [line for line in lines if line.startswith(("multicast", "egress_port", "dropped", "out"))] == [
        "multicast group 5: port 3 port 7 port 4",
        "egress_port 0x3",
        "out of port 3, 25 bytes",
        "egress_port 0x7",
        "dropped: egress",
        "egress_port 0x4",
        "out of port 4, 25 bytes",
    ]
    assert "dropped: ingress" in traced.way(request(0x21))
    assert "dropped: unknown group" in traced.way(request(0x20, 6))
    assert "digest of list 0: 0x9 0x8 0x0 0x7" in traced.way(request(0x15, 9, 8))
    assert "  parser error PacketTooShort" in traced.way(b"short")
    assert "  parser error ParserInvalidArgument" in traced.way(request(0xFF))


def test_trace_ends_after_the_requested_packets(tmp_path: Path) -> None:
    with (tmp_path / "trace.txt").open("wb") as file:
        engine = Engine({}, trace=Trace(packets=2, file=file.fileno()))
        engine.load(PROGRAM)
        for value in range(4):
            assert engine.inject(7, request(0x23, value)) == [(value, request(0x23, value + 1))]
    heads = [line for line in (tmp_path / "trace.txt").read_text().splitlines() if line.startswith("packet")]
    assert heads == ["packet 1 at port 7, 25 bytes", "packet 2 at port 7, 25 bytes"]


def test_trace_of_one_udp_port(tmp_path: Path) -> None:
    def udp(port: int, *, protocol: int = 17) -> bytes:
        ip = bytes([0x45, 0, 0, 28, 0, 0, 0, 0, 64, protocol, *bytes(10)])
        return bytes(12) + b"\x08\x00" + ip + (7).to_bytes(2) + port.to_bytes(2) + bytes(4)

    with (tmp_path / "trace.txt").open("wb") as file:
        engine = Engine({}, trace=Trace(packets=1, file=file.fileno(), udp_port=19278))
        engine.load(PROGRAM)
        for packet in (udp(19278, protocol=1), request(0x23, 1), udp(53), b"", udp(19278) + b"this", udp(19278)):
            engine.inject(7, packet)
    heads = [line for line in (tmp_path / "trace.txt").read_text().splitlines() if line.startswith("packet")]
    assert heads == ["packet 1 at port 7, 46 bytes"]


@pytest.mark.slow
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_traced_programs_of_the_suite_behave_the_same(script: Path, tmp_path: Path) -> None:
    statements = parse(script.read_text())
    with (tmp_path / "trace.txt").open("wb") as file:
        engine = Engine({}, trace=Trace(packets=1000, file=file.fileno()))
        engine.load(script.with_suffix(".json").read_bytes())
        assert Run(Injected(control=engine, ports=ports_of(statements))).execute(statements) == []
    heads = [line for line in (tmp_path / "trace.txt").read_text().splitlines() if line.startswith("packet ")]
    assert len(heads) == sum(isinstance(statement, Packet) for statement in statements)


def test_unwritable_trace_stops_no_packet() -> None:
    with Path("/dev/full").open("wb") as file:
        engine = Engine({}, trace=Trace(packets=9, file=file.fileno()))
        engine.load(PROGRAM)
        for _ in range(2):
            assert engine.inject(7, request(0x23, 1)) == [(1, request(0x23, 2))]


def test_generated_c_has_its_p4_lines_beside_it(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "rules.c"
    with caplog.at_level(logging.DEBUG, "kofn_switch.engine.engine"):
        Engine({}, dump_c=path).load(PROGRAM)
    text = path.read_text()
    lines = [line.strip() for line in text.splitlines()]
    at = lines.index("// rules.p4:123: standard.egress_spec = (bit<9>)hdr.request.value")
    assert lines[at + 1].startswith("D->standard_metadata_.egress_spec_ = ")
    at = lines.index("// rules.p4:122: hdr.request.op == 0x22")
    assert lines[at + 1].startswith("if (")
    bare = "".join(line for line in text.splitlines(keepends=True) if not line.lstrip().startswith("// "))
    assert bare == generate(read_program(PROGRAM)), "without comments the code must be the same"
    assert caplog.messages == [f"generated C:\n{text}"]


def test_unwritable_dump_is_named(tmp_path: Path) -> None:
    with pytest.raises(SwitchError, match=r"cannot be written: Is a directory$"):
        Engine({}, dump_c=tmp_path).load(PROGRAM)
