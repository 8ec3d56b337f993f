"""Parsers that go from state to state without taking anything from the packet end, in the switch and the reference."""

import json
from pathlib import Path
from typing import Any

import pytest

from kofn_switch.compiler.analysis.parser_loops import may_stand_still
from kofn_switch.compiler.ir.program import STILL_MAX
from kofn_switch.compiler.reader.reader import read_program
from kofn_switch.engine.engine import Engine
from tests.switch.build import Tree, const, document, field, op
from tests.switch.reference import ReferenceEngine
from tests.switch.suite.executor import Executor

SUITE = Path(__file__).parent / "suite" / "programs"
TIMEOUT = 5
COUNT = field("h", "count")
EXTRACT = {"op": "extract", "parameters": [{"type": "regular", "value": "h"}]}
SHIFT = {"op": "advance", "parameters": [const(8)]}


def state(name: str, statements: list[Any], *cases: tuple[int | None, str | None], key: Tree | None = None) -> Any:
    kinds = [{"type": "default", "value": None} if one is None else const(one) for one, _ in cases]
    transitions = [kind | {"mask": None, "next_state": to} for kind, (_, to) in zip(kinds, cases, strict=True)]
    keys = [] if key is None else [key]
    return {"name": name, "id": 0, "parser_ops": statements, "transition_key": keys, "transitions": transitions}


def program(*states: Any) -> bytes:
    """A parser that begins with the first state; the packet's new first header is the parser's error."""
    primitives = [
        {"op": "add_header", "parameters": [{"type": "header", "value": "out"}]},
        {"op": "assign", "parameters": [field("out", "error"), field("standard_metadata", "parser_error")]},
    ]
    text = document(
        header_types={"h_t": [["count", 24, False]], "out_t": [["error", 32, False]]},
        headers={"h": "h_t", "out": "out_t"},
        primitives=primitives,
        errors=[["NoError", 0], ["PacketTooShort", 1], ["ParserTimeout", TIMEOUT]],
        parsers=[{"name": "parser", "id": 0, "init_state": "start", "parse_states": list(states)}],
    )
    return json.dumps(json.loads(text) | {"deparsers": [{"name": "d", "id": 0, "order": ["out", "h"]}]}).encode()


COUNT_DOWN = {"op": "set", "parameters": [COUNT, op("-", COUNT, const(1))]}
LOOP = program(
    state("start", [EXTRACT], (None, "round")),
    state("round", [COUNT_DOWN], (1 << 24, None), (None, "round"), key=COUNT),
)
COUNTED = program(
    state("start", [EXTRACT], (None, "round")),
    state("round", [COUNT_DOWN], (0, None), (None, "round"), key=COUNT),
)
TAKES = program(state("start", [SHIFT], (None, "start")))


def errors(text: bytes, packet: bytes) -> list[int]:
    """Return the parser's error in the switch and in the reference; both must treat the packet alike."""
    executors: list[Executor] = [Engine({}), ReferenceEngine()]
    sent = []
    for executor in executors:
        executor.load(text)
        ((_, data),) = executor.inject(1, packet)
        sent.append(data)
    assert sent[0] == sent[1]
    return [int.from_bytes(data[:4], "big") for data in sent]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "packet", "error"),
    [
        (LOOP, bytes(3), TIMEOUT),
        (COUNTED, (STILL_MAX).to_bytes(3, "big"), 0),
        (COUNTED, (STILL_MAX + 1).to_bytes(3, "big"), TIMEOUT),
        (TAKES, bytes(STILL_MAX + 100), 1),
    ],
    ids=["endless", "long", "too long", "extracts"],
)
def test_parser_that_extracts_nothing_ends(text: bytes, packet: bytes, error: int) -> None:
    assert errors(text, packet) == [error, error]


@pytest.mark.parametrize(("text", "still"), [(LOOP, True), (COUNTED, True), (TAKES, False)])
def test_states_that_extract_nothing_are_found(text: bytes, still: bool) -> None:
    assert may_stand_still(read_program(text)) == still


@pytest.mark.parametrize("name", ["parsing", "stacks", "unions", "varbits"])
def test_parsers_without_such_loops_count_nothing(name: str) -> None:
    assert not may_stand_still(read_program((SUITE / f"{name}.json").read_bytes()))
