"""The scripts' notation, and scripts whose expectations are not met."""

import inspect
from pathlib import Path

import pytest

from kofn_switch.engine.engine import Engine
from kofn_switch.state.entries import Ternary
from tests.switch.reference import ReferenceEngine
from tests.switch.suite.executor import Executor
from tests.switch.suite.names import entry
from tests.switch.suite.runner import Run
from tests.switch.suite.script import run_script
from tests.switch.suite.stf import Add, AddMember, Call, Command, Expect, Packet, PlaceError, Rates, SetDefault, parse
from tests.switch.suite.targets import Injected

PROGRAMS = Path(__file__).parent / "programs"


def test_every_statement_is_parsed() -> None:
    text = """
    # a comment
    packet 3 0A0b 0c          # and another
    expect 4 0a*b $
    expect 5
    add t 7 h.a : 0x1* "h.b":4 c.act(x : 0x10, y:2) = name
    setdefault t nothing()
    member p 3 act(x:1)
    mc_node_create 4 1 2
    meter_array_set_rates m 0.5:10 1:20
    """
    assert parse(text) == [
        Packet(port=3, data=bytes([10, 11, 12])),
        Expect(line=4, port=4, pattern="0A*B", exact=True),
        Expect(line=5, port=5, pattern=None, exact=False),
        Add(
            table="t",
            priority=7,
            key={"h.a": "0x1*", "h.b": "4"},
            call=Call(action="c.act", arguments={"x": 16, "y": 2}),
        ),
        SetDefault(table="t", call=Call(action="nothing", arguments={})),
        AddMember(profile="p", id=3, call=Call(action="act", arguments={"x": 1})),
        Command(word="mc_node_create", numbers=(4, 1, 2)),
        Rates(name="m", index=None, rates=((0.5, 10), (1.0, 20))),
    ]


@pytest.mark.parametrize(
    "line",
    ["melt 3", "packet x 00", "packet 1 0", "expect 1 0g", "add t k:1 act", "setdefault t a() b", "check_counter c"],
)
def test_invalid_statement_is_refused(line: str) -> None:
    with pytest.raises(PlaceError, match="line 2"):
        parse(f"# first\n{line}")


@pytest.mark.parametrize(
    ("pattern", "packet", "fits"),
    [
        ("0A*B", "0A2B", True),
        ("0A*B", "0A2BFF", True),
        ("0A*B$", "0A2BFF", False),
        ("0A*B", "0A", False),
        ("$", "", True),
    ],
)
def test_expectations_compare_digits_and_length(pattern: str, packet: str, fits: bool) -> None:
    (expect,) = parse(f"expect 1 {pattern}")
    assert isinstance(expect, Expect)
    assert (expect.differs(bytes.fromhex(packet)) == "") is fits


class Copies(ReferenceEngine):
    """Sends two packets for one: first one whose byte is greater by 1, then the original."""

    def inject(self, port: int, packet: bytes) -> list[tuple[int, bytes]]:
        return [(port, bytes([packet[0] + 1])), (port, packet)]


@pytest.mark.parametrize(
    ("expected", "ordered", "passes"),
    [
        (("02", "01", "06", "05"), True, True),
        (("01", "02", "05", "06"), True, False),
        (("01", "02", "05", "06"), False, True),
        (("0*", "02", "05", "0*"), False, True),
        (("01", "03", "05", "06"), False, False),
        (("01", "01", "05", "06"), False, False),
        (("01", "05", "02", "06"), False, False),  # outputs of different packets are not mixed
        (("01", "02", "05"), False, False),
        (("01", "02", "05", "06", "0*"), False, False),
    ],
)
def test_outputs_of_one_packet_may_come_in_any_order_if_not_ordered(
    expected: tuple[str, ...], ordered: bool, passes: bool
) -> None:
    lines = [*(f"expect 1 {pattern}" for pattern in expected), "packet 1 01", "packet 1 05"]
    run = Run(Injected(control=Copies(), ports=frozenset({1}), ordered=ordered))
    assert (run.execute(parse("\n".join(lines))) == []) is passes


def added(line: str) -> object:
    engine = ReferenceEngine()
    engine.load((PROGRAMS / "tables.json").read_bytes())
    (statement,) = parse(line)
    assert engine.program is not None
    assert isinstance(statement, Add)
    return entry(engine.program, statement)


def test_values_of_keys_are_parsed_by_kind_of_match() -> None:
    keys = {
        "0x1f": Ternary(value=0x1F, mask=0xFF),
        "0x*f": Ternary(value=0x0F, mask=0x0F),
        "0b1*": Ternary(value=0b10, mask=0b10),
        "3": Ternary(value=3, mask=0xFFFFFFFF),
        "5&&&4": Ternary(value=4, mask=4),
    }
    for written, match in keys.items():
        made = added(f"add preferred 1 hdr.probe.c:{written} answer(result:1)")
        assert made.key == (match,), written  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("expect 2 0a00", "expect 2 0a01", "expected 0A01"),
        ("expect 2 0a00", "expect 3 0a00", "port 2: "),
        ("packets == 4", "packets == 5", "is 4, not == 5"),
        ("== 0x6f", "== 0x70", "is 111, not == 112"),
    ],
)
def test_script_with_another_expectation_fails(tmp_path: Path, old: str, new: str, reason: str) -> None:
    text = (PROGRAMS / "tables.stf").read_text()
    assert old in text
    (tmp_path / "tables.stf").write_text(text.replace(old, new, 1))
    (tmp_path / "tables.json").write_bytes((PROGRAMS / "tables.json").read_bytes())
    outcome = run_script(tmp_path / "tables.stf", "reference")
    assert outcome.verdict == "wrong"
    assert any(reason in line for line in outcome.reasons), outcome.reasons


@pytest.mark.parametrize("name", [name for name in vars(Executor) if not name.startswith("_")])
def test_both_engines_are_executors(name: str) -> None:
    if isinstance(vars(Executor)[name], property):
        assert isinstance(getattr(Engine, name), property) and isinstance(getattr(ReferenceEngine, name), property)
        return
    wanted = list(inspect.signature(getattr(Executor, name)).parameters)
    for engine in (Engine, ReferenceEngine):
        parameters = list(inspect.signature(getattr(engine, name)).parameters.values())
        assert [one.name for one in parameters[: len(wanted)]] == wanted, engine
        assert all(one.default is not one.empty for one in parameters[len(wanted) :]), engine
