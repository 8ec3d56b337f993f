"""Programs in the form of p4c-bm, which BMv2 accepts like p4c's: each runs in the engine and in the reference."""

import json
from collections.abc import Sequence
from typing import Any

import pytest

from kofn_switch.engine.engine import Engine
from kofn_switch.state.entries import Entry, Exact, GroupMember, GroupRef, Member, MemberGroup, MemberRef, Replica
from tests.switch.build import Tree, const, document, field, op
from tests.switch.reference import ReferenceEngine

A, B, C, NARROW, WIDE = (field("h", name) for name in ("a", "b", "c", "narrow", "wide"))
TYPES = {"h_t": [["a", 32], ["b", 32], ["c", 32], ["narrow", 8], ["wide", 96]]}
STRUCT = (4, 4, 4, 1, 12)
"""Sizes of the fields in bytes."""

KEY = [{"match_type": "exact", "target": ["h", "a"], "mask": None}]
TABLE: dict[str, Any] = {
    "name": "t", "id": 0, "match_type": "exact", "type": "simple", "max_size": 16, "with_counters": False,
    "support_timeout": False, "direct_meters": None, "key": KEY, "actions": ["first", "second"],
    "next_tables": {"first": None, "second": None}, "base_default_next": None,
}  # fmt: skip


def primitive(name: str, *arguments: Tree) -> dict[str, Any]:
    return {"op": name, "parameters": list(arguments)}


def header(name: str) -> Tree:
    return {"type": "header", "value": name}


def older(primitives: Sequence[Any], **sections: Any) -> bytes:
    """Return a program without the parts that p4c-bm does not write; `sections` replace its own."""
    root = json.loads(document(header_types=TYPES, headers={"h": "h_t", "g": "h_t"}, primitives=primitives))
    root |= sections
    for name in ("__meta__", "errors", "parse_vsets", "extern_instances", "header_unions", "header_union_stacks"):
        del root[name]
    for pipeline in root["pipelines"]:
        del pipeline["action_profiles"]
        for table in pipeline["tables"]:
            table.pop("action_ids", None)
    return json.dumps(root).encode()


def engines(program: bytes) -> tuple[Engine, ReferenceEngine]:
    both = Engine({}), ReferenceEngine()
    for one in both:
        one.load(program)
    return both


def packed(*values: int) -> bytes:
    return b"".join(value.to_bytes(size, "big") for value, size in zip(values, STRUCT, strict=True))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("statement", "changed", "value"),
    [
        (primitive("modify_field", C, B), 2, 5),
        (primitive("modify_field", NARROW, op("+", A, const(2))), 3, 1),
        (primitive("add", C, A, B), 2, 4),
        (primitive("add", WIDE, A, B), 4, (1 << 32) + 4),
        (primitive("subtract", C, B, A), 2, 6),
        (primitive("subtract", WIDE, B, A), 4, (1 << 96) + 6 - (1 << 32)),
        (primitive("bit_and", C, A, const(0xF0)), 2, 0xF0),
        (primitive("bit_or", C, B, const(0xF0)), 2, 0xF5),
        (primitive("bit_xor", WIDE, A, B), 4, 0xFFFFFFFA),
        (primitive("shift_left", C, A, B), 2, 0xFFFFFFE0),
        (primitive("shift_left", WIDE, A, B), 4, 0x1FFFFFFFE0),
        (primitive("shift_right", C, A, B), 2, 0x07FFFFFF),
        (primitive("add_to_field", A, const(3)), 0, 2),
        (primitive("add_to_field", NARROW, const(0x1FF)), 3, 6),
        (primitive("subtract_from_field", B, const(7)), 1, 0xFFFFFFFE),
        (primitive("subtract_from_field", WIDE, const(10)), 4, (1 << 96) - 1),
    ],
)
def test_primitives_of_older_compilers_truncate_their_result(
    statement: dict[str, Any], changed: int, value: int
) -> None:
    arrived = [0xFFFFFFFF, 5, 1, 7, 9]
    left = [*arrived[:changed], value, *arrived[changed + 1 :]]
    for engine in engines(older([statement])):
        assert engine.inject(1, packed(*arrived)) == [(0, packed(*left))]


def test_copied_header_is_another_header() -> None:
    statements = [primitive("copy_header", header("g"), header("h")), primitive("modify_field", A, const(2))]
    for engine in engines(older(statements)):
        (sent,) = engine.inject(1, packed(1, 1, 1, 1, 1))
        assert sent == (0, packed(2, 1, 1, 1, 1) + packed(1, 1, 1, 1, 1))


def test_dropped_packet_goes_to_no_group_either() -> None:
    standard = [["ingress_port", 9], ["packet_length", 32], ["egress_spec", 9], ["instance_type", 32], ["_pad", 6]]
    kinds = {"standard_metadata": standard, "intrinsic_metadata_t": [["mcast_grp", 16]]} | TYPES
    names = {"standard_metadata": "standard_metadata", "intrinsic_metadata": "intrinsic_metadata_t", "h": "h_t"}
    sections = {
        "header_types": [{"name": name, "id": i, "fields": fields} for i, (name, fields) in enumerate(kinds.items())],
        "headers": [
            {"name": name, "id": i, "header_type": kind, "metadata": "metadata" in name}
            for i, (name, kind) in enumerate(names.items())
        ],
        "deparsers": [{"name": "deparser", "id": 0, "order": ["h"]}],
    }
    sent = primitive("modify_field", field("intrinsic_metadata", "mcast_grp"), const(3))
    for statements, ports in (([sent], [2, 4]), ([sent, primitive("drop")], [])):
        for engine in engines(older(statements, **sections)):
            engine.set_group(3, [Replica(port=2), Replica(port=4)])
            assert [port for port, _ in engine.inject(1, packed(1, 1, 1, 1, 1))] == ports


def actions(*values: int) -> list[dict[str, Any]]:
    return [
        {"name": name, "id": 7 + i, "runtime_data": [], "primitives": [primitive("modify_field", B, const(value))]}
        for i, (name, value) in enumerate(zip(("first", "second"), values, strict=True))
    ]


def pipelines(table: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        {"name": "ingress", "id": 0, "init_table": "t", "tables": [table], "conditionals": [], "action_profiles": []},
        {"name": "egress", "id": 1, "init_table": None, "tables": [], "conditionals": [], "action_profiles": []},
    ]


def test_table_names_its_actions() -> None:
    for engine in engines(older([], actions=actions(10, 20), pipelines=pipelines(TABLE))):
        engine.insert(Entry(table="t", key=(Exact(value=1),), action="second"))
        engine.set_default("t", "first", ())
        for a, b in ((1, 20), (2, 10)):
            assert engine.inject(1, packed(a, 0, 0, 0, 0)) == [(0, packed(a, b, 0, 0, 0))]


def test_table_declares_its_action_profile_itself() -> None:
    chosen_by = {"algo": "crc16", "input": [C]}
    table = TABLE | {"type": "indirect_ws", "act_prof_name": "own", "selector": chosen_by}
    for engine in engines(older([], actions=actions(10, 20), pipelines=pipelines(table))):
        engine.insert_member(Member(profile="own", id=1, action="first"))
        engine.insert_member(Member(profile="own", id=2, action="second"))
        members = tuple(GroupMember(member=number) for number in (1, 2))
        engine.insert_member_group(MemberGroup(profile="own", id=1, members=members))
        engine.insert(Entry(table="t", key=(Exact(value=1),), via=MemberRef(member=2)))
        engine.insert(Entry(table="t", key=(Exact(value=2),), via=GroupRef(group=1)))
        assert engine.inject(1, packed(1, 0, 0, 0, 0)) == [(0, packed(1, 20, 0, 0, 0))]
        found = {engine.inject(1, packed(2, 0, c, 0, 0))[0][1][7] for c in range(20)}
        assert found == {10, 20}


@pytest.mark.parametrize("stack", [False, True])
def test_header_type_gives_the_length_of_its_variable_field(stack: bool) -> None:
    """The text has `length` - 1 bytes; the fixed header follows it."""
    bits = op("*", op("-", {"type": "local", "value": 1}, const(1)), const(8))
    kinds = [
        {"name": "standard_metadata", "id": 0, "fields": json.loads(older([]))["header_types"][0]["fields"]},
        {"name": "v_t", "id": 1, "fields": [["kind", 8], ["length", 16], ["text", "*"]], "max_length": 1503,
         "length_exp": bits},
        {"name": "f_t", "id": 2, "fields": [["a", 8]], "max_length": None, "length_exp": None},
    ]  # fmt: skip
    names = {"standard_metadata": "standard_metadata", "v[0]": "v_t", "v[1]": "v_t", "f": "f_t"}
    taken = (
        [{"type": "stack", "value": "v"}] * 2 if stack else [{"type": "regular", "value": f"v[{i}]"} for i in (0, 1)]
    )
    extracts = [primitive("extract", target) for target in (*taken, {"type": "regular", "value": "f"})]
    program = older(
        [primitive("add_to_field", field("f", "a"), const(1))],
        header_types=kinds,
        headers=[
            {"name": name, "id": i, "header_type": kind, "metadata": kind == "standard_metadata"}
            for i, (name, kind) in enumerate(names.items())
        ],
        header_stacks=[{"name": "v", "id": 0, "size": 2, "header_type": "v_t", "header_ids": [1, 2]}],
        parsers=[{"name": "parser", "id": 0, "init_state": "start", "parse_states": [
            {"name": "start", "id": 0, "parser_ops": extracts, "transition_key": [],
             "transitions": [{"value": "default", "mask": None, "next_state": None}]}]}],
        deparsers=[{"name": "deparser", "id": 0, "order": ["v[0]", "v[1]", "f"]}],
    )  # fmt: skip
    for engine in engines(program):
        for first, second in ((0, 0), (3, 1), (256, 257), (1500, 1500)):
            texts = b"".join(
                b"\x09" + (size + 1).to_bytes(2) + (bytes(range(250)) * 6)[:size] for size in (first, second)
            )
            assert engine.inject(1, texts + b"\x07rest") == [(0, texts + b"\x08rest")]
        too_long = b"\x09" + (1502).to_bytes(2) + bytes(1600)
        assert engine.inject(1, too_long) == [(0, too_long)]


@pytest.mark.parametrize("bits", [4, 32, 80, 200])
def test_register_is_read_into_a_field_of_another_width(bits: int) -> None:
    value = (0x0123456789ABCDEF << 8 | 0x5A) & (1 << bits) - 1
    register = {"type": "register_array", "value": "r"}
    statements = [primitive("register_read", target, register, const(2)) for target in (B, NARROW, WIDE)]
    registers = [{"name": "r", "id": 0, "size": 4, "bitwidth": bits}]
    for engine in engines(older(statements, register_arrays=registers)):
        engine.write_register("r", 2, value)
        read = [0, value & 0xFFFFFFFF, 0, value & 0xFF, value & (1 << 96) - 1]
        assert engine.inject(1, bytes(25)) == [(0, packed(*read))]
