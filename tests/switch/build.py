"""Small programs in p4c's JSON, written by hand: one action assigns expressions to the fields of a second header.

`evaluate` defines their meaning: it computes with integers of any size, as BMv2 does.
"""

import json
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

Tree: TypeAlias = Any  # the JSON of an expression
STANDARD = [
    ["ingress_port", 9, False],
    ["egress_spec", 9, False],
    ["egress_port", 9, False],
    ["instance_type", 32, False],
    ["packet_length", 32, False],
    ["mcast_grp", 16, False],
    ["egress_rid", 16, False],
    ["checksum_error", 1, False],
    ["parser_error", 32, False],
    ["_padding", 4, False],
]


def const(value: int) -> Tree:
    return {"type": "hexstr", "value": hex(value)}


def field(header: str, name: str) -> Tree:
    return {"type": "field", "value": [header, name]}


def op(name: str, *operands: Tree) -> Tree:
    value: dict[str, Any] = {"op": name}
    if name == "?":
        value["cond"], value["left"], value["right"] = operands
    elif len(operands) == 1:
        value["left"], value["right"] = None, operands[0]
    else:
        value["left"], value["right"] = operands
    return {"type": "expression", "value": value}


def evaluate(tree: Tree, fields: Mapping[str, int]) -> int:
    """Return the value in integers of any size; Booleans are 0 and 1."""
    if tree["type"] == "hexstr":
        return int(tree["value"], 16)
    if tree["type"] == "field":
        return fields[tree["value"][1]]
    value = tree["value"]
    if value["op"] == "?":
        return evaluate(value["left"] if evaluate(value["cond"], fields) else value["right"], fields)
    right = evaluate(value["right"], fields)
    if value["left"] is None:
        return {"~": ~right, "-": -right, "not": int(not right), "d2b": int(right != 0), "b2d": right}[value["op"]]
    return binary(value["op"], evaluate(value["left"], fields), right)


def binary(name: str, a: int, b: int) -> int:
    return int(BINARY[name](a, b))


BINARY: dict[str, Callable[[int, int], int]] = {
    **{"+": operator.add, "-": operator.sub, "*": operator.mul},
    **{"&": operator.and_, "|": operator.or_, "^": operator.xor, "<<": operator.lshift, ">>": operator.rshift},
    **{"==": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le},
    **{">": operator.gt, ">=": operator.ge},
    "/": lambda a, b: a // b if b else 0,
    "%": lambda a, b: a % b if b else 0,
    "and": lambda a, b: a and b,
    "or": lambda a, b: a or b,
    "two_comp_mod": lambda a, b: (a + (1 << (b - 1))) % (1 << b) - (1 << (b - 1)),
    "usat_cast": lambda a, b: min(max(a, 0), (1 << b) - 1),
    "sat_cast": lambda a, b: min(max(a, -(1 << (b - 1))), (1 << (b - 1)) - 1),
}


@dataclass(frozen=True, kw_only=True)
class Arithmetic:
    """A program that reads `inputs` (name, width, signed) and writes `results` (width, signed, tree)."""

    inputs: Sequence[tuple[str, int, bool]]
    results: Sequence[tuple[int, bool, Tree]]

    def document(self) -> bytes:
        assigned = [
            {"op": "assign", "parameters": [field("out", f"r{i}"), tree], "source_info": place(i + 1)}
            for i, (_, _, tree) in enumerate(self.results)
        ]
        primitives = [{"op": "add_header", "parameters": [{"type": "header", "value": "out"}]}, *assigned]
        return document(
            header_types={
                "in_t": padded([list(item) for item in self.inputs]),
                "out_t": padded([[f"r{i}", width, signed] for i, (width, signed, _) in enumerate(self.results)]),
            },
            headers={"in": "in_t", "out": "out_t"},
            primitives=primitives,
        )

    def packet(self, values: Mapping[str, int]) -> bytes:
        bits = "".join(format(values[name] % (1 << width), f"0{width}b") for name, width, _ in self.inputs)
        bits += "0" * (-len(bits) % 8)
        return int(bits, 2).to_bytes(len(bits) // 8, "big")

    def read(self, packet: bytes) -> list[int]:
        skip = (sum(width for _, width, _ in self.inputs) + 7) // 8 * 8
        bits = format(int.from_bytes(packet, "big"), f"0{8 * len(packet)}b")
        values = []
        for width, _, _ in self.results:
            values.append(int(bits[skip : skip + width], 2))
            skip += width
        return values

    def expected(self, values: Mapping[str, int]) -> list[int]:
        return [evaluate(tree, values) % (1 << width) for width, _, tree in self.results]


def padded(fields: list[list[Any]]) -> list[list[Any]]:
    rest = -sum(width for _, width, _ in fields) % 8
    return [*fields, ["_padding", rest, False]] if rest else fields


def place(line: int) -> dict[str, Any]:
    return {"filename": "test.p4", "line": line, "column": 1, "source_fragment": f"statement {line}"}


def document(
    *,
    header_types: Mapping[str, list[list[Any]]],
    headers: Mapping[str, str],
    primitives: Sequence[Any],
    **sections: Any,
) -> bytes:
    """Return a program whose parser extracts the first header and whose ingress runs the primitives."""
    types = {"standard_metadata": STANDARD, **header_types}
    instances = {"standard_metadata": "standard_metadata", **headers}
    extract = {"op": "extract", "parameters": [{"type": "regular", "value": next(iter(headers))}]}
    start = {"name": "start", "id": 0, "parser_ops": [extract], "transition_key": [],
             "transitions": [{"type": "default", "value": None, "mask": None, "next_state": None}]}  # fmt: skip
    table = {
        "name": "t", "id": 0, "match_type": "exact", "type": "simple", "max_size": 1024, "with_counters": False,
        "support_timeout": False, "direct_meters": None, "key": [], "action_ids": [0], "actions": ["a"],
        "next_tables": {"a": None}, "source_info": place(1),
        "default_entry": {"action_id": 0, "action_const": True, "action_data": [], "action_entry_const": True},
    }  # fmt: skip
    root = {
        "__meta__": {"version": [2, 23]},
        "header_types": [{"name": name, "id": i, "fields": fields} for i, (name, fields) in enumerate(types.items())],
        "headers": [
            {"name": name, "id": i, "header_type": kind, "metadata": name == "standard_metadata"}
            for i, (name, kind) in enumerate(instances.items())
        ],
        "header_stacks": [], "errors": [["NoError", 0], ["PacketTooShort", 1]], "parse_vsets": [],
        "parsers": [{"name": "parser", "id": 0, "init_state": "start", "parse_states": [start]}],
        "deparsers": [{"name": "deparser", "id": 0, "order": list(headers)}],
        "meter_arrays": [], "counter_arrays": [], "register_arrays": [], "calculations": [], "checksums": [],
        "learn_lists": [], "extern_instances": [], "header_unions": [], "header_union_stacks": [],
        "actions": [{"name": "a", "id": 0, "runtime_data": [], "primitives": list(primitives)}],
        "pipelines": [
            {"name": "ingress", "id": 0, "init_table": "t", "tables": [table], "action_profiles": [],
             "conditionals": []},
            {"name": "egress", "id": 1, "init_table": None, "tables": [], "action_profiles": [], "conditionals": []},
        ],
        **sections,
    }  # fmt: skip
    return json.dumps(root).encode()
