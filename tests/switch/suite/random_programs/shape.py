"""The headers of a random program, and the form of its JSON."""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from tests.switch.build import Tree, const
from tests.switch.build import field as field_of
from tests.switch.suite.random_programs.expressions import WIDER, Leaf, Readable, guarded

META, STANDARD, STACK = "meta", "standard_metadata", "stack"
STANDARD_FIELDS: list[list[Any]] = [
    *(["ingress_port", 9], ["egress_spec", 9], ["egress_port", 9], ["clone_spec", 32], ["instance_type", 32]),
    *(["drop", 1], ["recirculate_port", 16], ["packet_length", 32], ["enq_timestamp", 32], ["enq_qdepth", 19]),
    *(["deq_timedelta", 32], ["deq_qdepth", 19], ["ingress_global_timestamp", 48], ["egress_global_timestamp", 48]),
    *(["lf_field_list", 32], ["mcast_grp", 16], ["resubmit_flag", 32], ["egress_rid", 16], ["recirculate_flag", 32]),
    *(["checksum_error", 1], ["parser_error", 32], ["priority", 3], ["_padding", 2]),
]
ALIASES = ("mcast_grp", "egress_rid", "priority", "ingress_global_timestamp", "egress_global_timestamp")
READ = ("ingress_port", "packet_length", "instance_type", "parser_error", "checksum_error", "mcast_grp", "egress_spec")
SIGNED = (8, 16, 33)
UNIONS = ("u", "w")
VARIABLE, VARIABLE_FIELD, VARIABLE_MAX = ("v0", "v1"), "rest", 64
AGAIN = "again"  # metadata that marks a packet's second pass
SMALL = (1, 2, 3, 4)  # widths in bits of the metadata in keys


@dataclass(frozen=True, slots=True)
class Member:
    """A field of a type."""

    name: str
    width: int
    signed: bool = False
    variable: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Headers:
    """Types by name and headers by name.

    `twins` are headers of one type, `stack` the members of the one stack, UNIONS headers of the same two types each,
    VARIABLE headers of one type with a variable field.
    """

    types: dict[str, list[Member]]
    instances: dict[str, str]
    twins: tuple[str, str]
    stack: tuple[str, ...]

    @property
    def names(self) -> list[str]:
        """The names of the headers on the wire."""
        return [name for name in self.instances if name not in (META, STANDARD)]

    def fields(self, header: str) -> list[Member]:
        """Return a header's fields, except padding and the mark of copies."""
        members = self.types[self.instances[header]]
        return [member for member in members if member.name not in ("_padding", AGAIN) and not member.variable]

    def readable(self, random: Random, more: Sequence[Leaf] = ()) -> Readable:
        """Return the values that expressions may read."""
        meta = [Leaf(field_of(META, member.name), member.width, member.signed) for member in self.fields(META)]
        standard = {str(name): int(width) for name, width in STANDARD_FIELDS}
        always = [Leaf(field_of(STANDARD, name), standard[name]) for name in READ]
        wire = [Leaf(guarded(name, member.name), member.width) for name in self.names for member in self.fields(name)]
        leaves = [*meta, *always, *wire, *more]
        first = self.fields(self.stack[0])[0]
        return Readable(
            random=random,
            leaves=leaves,
            headers=self.names,
            equal=[self.twins],
            unions=UNIONS,
            stack=self.stack,
            element=Leaf({}, first.width),
        )

    def document(self) -> dict[str, Any]:
        """Return the sections of the JSON."""
        types = [*self.types, STANDARD]
        numbers = {name: number for number, name in enumerate(self.instances)}
        return {
            "header_types": [
                {"name": name, "id": number, "fields": self._fields(name), **self._length(name)}
                for number, name in enumerate(types)
            ],
            "header_union_types": [{"name": "union_t", "id": 0, "headers": [["x", "t0"], ["y", "t1"]]}],
            "header_unions": [
                {
                    "name": name,
                    "id": number,
                    "union_type": "union_t",
                    "header_ids": [numbers[f"{name}.x"], numbers[f"{name}.y"]],
                }
                for number, name in enumerate(UNIONS)
            ],
            "headers": [
                {"name": name, "id": numbers[name], "header_type": kind, "metadata": name in (META, STANDARD)}
                for name, kind in self.instances.items()
            ],
            "header_stacks": [
                {
                    "name": STACK,
                    "id": 0,
                    "header_type": self.instances[self.stack[0]],
                    "size": len(self.stack),
                    "header_ids": [numbers[name] for name in self.stack],
                }
            ],
        }

    def _fields(self, kind: str) -> list[list[Any]]:
        if kind == STANDARD:
            return [[*item, False] for item in STANDARD_FIELDS]
        return [
            [member.name, "*"] if member.variable else [member.name, member.width, member.signed]
            for member in self.types[kind]
        ]

    def _length(self, kind: str) -> dict[str, int]:
        members = self.types.get(kind, [])
        total = sum(member.width for member in members) // 8
        return {"max_length": total} if any(member.variable for member in members) else {}


def random_headers(random: Random, *, wide: int) -> Headers:
    """Return random headers; fields have at most `wide` bits."""
    widths = [width for width in WIDER if width <= wide]
    types = {f"t{number}": _padded(_members(random, widths, "f")) for number in range(3)}
    meta = [*_members(random, widths, "m"), *(Member(f"k{width}", width) for width in SMALL)]
    meta += [Member(f"s{width}", width, signed=True) for width in SIGNED]
    meta += [Member("r", random.choice(widths)), Member("h", 32), Member(AGAIN, 1)]
    types["meta_t"] = _padded(meta)
    stack = tuple(f"{STACK}[{number}]" for number in range(3))
    types["variable_t"] = [Member("f0", 8), Member(VARIABLE_FIELD, VARIABLE_MAX, variable=True)]
    unions = {f"{name}.{member}": kind for name in UNIONS for member, kind in (("x", "t0"), ("y", "t1"))}
    instances = {"a": "t0", "b": "t0", "c": "t1", **dict.fromkeys(stack, "t2"), **unions}
    instances |= {**dict.fromkeys(VARIABLE, "variable_t"), META: "meta_t", STANDARD: STANDARD}
    return Headers(types=types, instances=instances, twins=("a", "b"), stack=stack)


def _members(random: Random, widths: Sequence[int], letter: str) -> list[Member]:
    return [Member(f"{letter}{number}", random.choice(widths)) for number in range(random.randint(1, 4))]


def _padded(members: list[Member]) -> list[Member]:
    rest = -sum(member.width for member in members) % 8
    return [*members, Member("_padding", rest)] if rest else members


def argument(tree: Tree) -> Tree:
    """Return a tree as the argument of a statement."""
    if tree["type"] == "expression":
        return {"type": "expression", "value": tree}
    return {"type": "runtime_data", "value": tree["value"]} if tree["type"] == "local" else tree


def statement(name: str, *arguments: Tree) -> dict[str, Any]:
    """Return a primitive."""
    return {"op": name, "parameters": [argument(tree) for tree in arguments]}


def named(kind: str, name: str) -> Tree:
    """Return a header, array, ... as an argument."""
    return {"type": kind, "value": name}


def hexadecimal(value: int, width: int) -> str:
    """Return a number with all digits of its bytes."""
    return f"0x{value:0{(width + 7) // 8 * 2}x}"


__all__ = [
    "AGAIN",
    "META",
    "STACK",
    "STANDARD",
    "Headers",
    "Member",
    "argument",
    "const",
    "hexadecimal",
    "named",
    "statement",
]
