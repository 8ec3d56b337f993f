"""Programs write to the log, and a failed assertion drops its packet: programs/reports.p4."""

import logging
from pathlib import Path

import pytest

from kofn_switch.__main__ import ReportLog
from kofn_switch.engine.engine import Engine
from kofn_switch.errors import ProgramError
from kofn_switch.state.entries import Entry, Exact, LogReport, Replica
from tests.switch.build import const, document, field

PROGRAM = (Path(__file__).parent / "programs" / "reports.json").read_bytes()


@pytest.fixture(scope="module")
def engine() -> Engine:
    engine = Engine({})
    engine.load(PROGRAM)
    return engine


def packet(op: int, small: int = 0, signed: int = 0, wide: int = 0, wide_signed: int = 0) -> bytes:
    bits = f"{op:08b}{small:08b}{signed % 256:08b}{wide:072b}{wide_signed % (1 << 100):0100b}0000"
    return int(bits, 2).to_bytes(len(bits) // 8, "big")


def said(engine: Engine, data: bytes) -> list[str]:
    assert [port for port, _ in engine.inject(1, data)] == [1]
    return [report.text for report in engine.take_reports(0) if not report.failed]


def test_log_messages_have_their_values(engine: Engine) -> None:
    assert said(engine, packet(0)) == ["plain"]
    assert said(engine, packet(1, 200, -3)) == ["200 and -3 {not this} 1"]
    assert said(engine, packet(2, wide=(1 << 72) - 1, wide_signed=-(1 << 99))) == [
        "wide 4722366482869645213695 -633825300114114700748351602688."
    ]
    assert said(engine, packet(3)) == []
    told = Entry(table="ingress.tells", key=(Exact(value=7),), action="ingress.told", parameters=(65535, (1 << 72) - 2))
    engine.insert(told)
    assert said(engine, packet(3, small=7)) == ["65535 4722366482869645213694"]
    assert said(engine, packet(4, wide=(1 << 72) - 1)) == ["sum 0"]
    assert said(engine, packet(0x10, small=9)) == ["parsed 9"]
    assert said(engine, packet(0x11)) == ["port 1"]


def test_failed_assertion_drops_the_packet_and_names_its_place(engine: Engine) -> None:
    before = engine.stats().drops["assertion failed"]
    lines = {0x51: "assert(hdr.ask.op != 0x51", 0x53: "assert(hdr.ask.op != 0x53)"}
    for op, fragment in lines.items():
        assert engine.inject(1, packet(op)) == []
        (report,) = engine.take_reports(0)
        assert report.failed
        assert report.text.startswith(f"assert failed: {fragment}")
        assert "file reports.p4, line " in report.text
    assert engine.inject(1, packet(0x52)) == []
    assert engine.take_reports(0)[0].text.startswith("assume failed: assume(hdr.ask.op != 0x52)")
    assert engine.stats().drops["assertion failed"] == before + 3
    assert said(engine, packet(0x51, small=1)) == []


def test_unread_messages_are_dropped_and_counted(engine: Engine) -> None:
    engine.set_group(1, [Replica(port=port) for port in range(500)])
    dropped = engine.stats().drops["log ring full"]
    while engine.stats().drops["log ring full"] == dropped:
        engine.inject(1, packet(0x12))
    assert [report.text for report in engine.take_reports(0)[:2]] == ["long 0 0", "long 0 1"]
    engine.load(PROGRAM)
    assert not any(engine.take_reports(0) for _ in range(40)), "no report of the earlier program may be left"
    assert said(engine, packet(0)) == ["plain"]


def test_log_has_the_messages_and_counts_the_missing_ones(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    engine = Engine({})
    engine.load(PROGRAM)
    engine.set_group(1, [Replica(port=port) for port in range(500)])
    log = ReportLog(engine)
    log.write([LogReport(text="100 %s", failed=False), LogReport(text="no", failed=True)])
    while not (lost := engine.stats().drops["log ring full"]):
        engine.inject(1, packet(0x12))
    log.write(engine.take_reports(0)[:1])
    log.write(engine.take_reports(0)[:1])
    assert [(record.levelname, record.getMessage()) for record in caplog.records[:4]] == [
        ("INFO", "100 %s"),
        ("ERROR", "no"),
        ("INFO", "long 0 0"),
        ("WARNING", f"{lost} messages are missing here: they came faster than they could be written"),
    ]
    assert len(caplog.records) == 5, "each lost message must be logged once"


@pytest.mark.parametrize(("text", "count"), [("{} {}", 1), ("none", 1), (r"\{\}", 1), ("{}", 0)])
def test_message_with_a_wrong_number_of_values_is_refused(text: str, count: int) -> None:
    values = {"type": "parameters_vector", "value": [field("h", "a")] * count}
    primitive = {"op": "log_msg", "parameters": [{"type": "string", "value": text}, values]}
    program = document(header_types={"h_t": [["a", 32, False]]}, headers={"h": "h_t"}, primitives=[primitive])
    with pytest.raises(ProgramError, match=r"a message for . values is given ."):
        Engine({}).load(program)


def test_constant_can_be_logged() -> None:
    values = {"type": "parameters_vector", "value": [const(1 << 80), {"type": "bool", "value": True}]}
    primitive = {"op": "log_msg", "parameters": [{"type": "string", "value": "{} {}"}, values]}
    engine = Engine({})
    engine.load(document(header_types={"h_t": [["a", 32, False]]}, headers={"h": "h_t"}, primitives=[primitive]))
    engine.inject(1, bytes(4))
    assert [report.text for report in engine.take_reports(0)] == ["1208925819614629174706176 1"]
