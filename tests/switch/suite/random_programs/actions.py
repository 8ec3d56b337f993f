"""Random actions."""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

from tests.switch.build import Tree, const, op
from tests.switch.build import field as field_of
from tests.switch.suite.random_programs.expressions import WIDTHS, Leaf, Readable, bits, cut, element, ints, truth
from tests.switch.suite.random_programs.shape import (
    AGAIN,
    META,
    STACK,
    STANDARD,
    UNIONS,
    VARIABLE,
    Headers,
    Member,
    named,
    statement,
)

CELLS = 12
PORTS = 4
ALGORITHMS = ("crc16", "crc32", "csum16", "xor16", "identity", "crc16_custom", "crc32_custom")
FIELD_LISTS = 2
GROUP, SESSION = 1, 5
INGRESS = ("clone_ingress_pkt_to_egress", "resubmit")
EGRESS = ("clone_egress_pkt_to_egress", "recirculate")
REPORT = "value {} of {}"

Primitive = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """An action of the JSON, with the widths of its parameters."""

    id: int
    parameters: tuple[int, ...]
    primitives: list[Primitive]

    @property
    def name(self) -> str:
        """The action's name, unique in the program."""
        return f"action{self.id}"

    def document(self) -> dict[str, Any]:
        """Return the action's JSON."""
        data = [{"name": f"p{number}", "bitwidth": width} for number, width in enumerate(self.parameters)]
        return {"name": self.name, "id": self.id, "runtime_data": data, "primitives": self.primitives}


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionMaker:
    """Makes the actions of one pipeline."""

    random: Random
    headers: Headers
    egress: bool
    copies: bool
    tame: bool

    def action(self, number: int) -> Action:
        """Return an action with parameters and statements, some of them with jumps."""
        parameters = tuple(self.random.choice(WIDTHS) for _ in range(self.random.randint(0, 2)))
        more = [Leaf({"type": "local", "value": place}, width) for place, width in enumerate(parameters)]
        source = self.headers.readable(self.random, more)
        primitives: list[Primitive] = []
        for _ in range(self.random.randint(1, 5)):
            block = self._statement(source)
            if self.random.random() < 0.25:
                block = [_unless(truth(source, 1), len(block)), *block]
            primitives += block
        if self.random.random() < 0.05:
            primitives.append(statement("exit"))
        placed = [_placed(primitive, place) for place, primitive in enumerate(primitives)]
        return Action(id=number, parameters=parameters, primitives=placed)

    def deparser(self) -> list[Primitive]:
        """Return statements of the deparser; they add no headers."""
        source = self.headers.readable(self.random)
        return [one for _ in range(self.random.randint(0, 2)) for one in self._assign(source)]

    def _statement(self, source: Readable) -> list[Primitive]:
        rules: list[tuple[int, Callable[[Readable], list[Primitive]]]] = [
            (8, self._assign),
            (2, self._header),
            (2, self._stack),
            (3, self._state),
            (1, self._hash),
            (2, self._fate),
            (1, self._copy),
        ]
        weights, choices = zip(*rules, strict=True)
        return self.random.choices(choices, weights)[0](source)

    def _member(self, header: str) -> Member:
        return self.random.choice(self.headers.fields(header))

    def _assign(self, source: Readable) -> list[Primitive]:
        if self.random.random() < 0.1:
            first = self.headers.fields(self.headers.stack[0])[0]
            return [statement("assign", element(source, 0), bits(source, first.width))]
        header = self.random.choice([META, META, *self.headers.names])
        member = self._member(header)
        value = (ints if member.signed else bits)(source, member.width)
        return [statement("assign", field_of(header, member.name), value)]

    def _header(self, _source: Readable) -> list[Primitive]:
        name = self.random.choice(["add_header", "add_header", "remove_header", "remove_header", "whole"])
        if name == "whole":
            return [self._whole()]
        return [statement(name, named("header", self.random.choice(self.headers.names)))]

    def _whole(self) -> Primitive:
        """Return an assignment of a header or union to another of its type."""
        kinds = [("header", self.headers.twins), ("header", VARIABLE), ("header_union", UNIONS)]
        kind, names = self.random.choice(kinds[:2] if self.tame else kinds)
        name = "assign_union" if kind == "header_union" else "assign_header"
        return statement(name, *(named(kind, one) for one in self.random.sample(names, 2)))

    def _stack(self, _source: Readable) -> list[Primitive]:
        name, by = self.random.choice(["push", "pop"]), self.random.randint(1, 4)
        return [statement(name, named("header_stack", STACK), const(by))]

    def _state(self, source: Readable) -> list[Primitive]:
        width = next(member.width for member in self.headers.fields(META) if member.name == "r")
        array, index = named("register_array", "register"), op("%", bits(source, 8, 1), const(CELLS))
        copies_race = self.tame and self.egress  # BMv2 runs egress in several threads
        match self.random.randint(2 if copies_race else 0, 3):
            case 0:
                return [statement("register_read", field_of(META, "r"), array, index)]
            case 1:
                return [statement("register_write", array, index, bits(source, width))]
            case 2:
                return [statement("count", named("counter_array", "counter"), index)]
        values = {"type": "parameters_vector", "value": [_wrapped(bits(source, 16, 1)), _wrapped(ints(source, 9, 1))]}
        return [statement("log_msg", named("string", REPORT), values)]

    def _hash(self, source: Readable) -> list[Primitive]:
        calculation = named("calculation", f"hash_{self.random.choice(ALGORITHMS)}")
        base, most = bits(source, 16, 1), const(self.random.choice((0, 1, 7, 256, 1 << 32)))
        return [statement("modify_field_with_hash_based_offset", field_of(META, "h"), base, calculation, most)]

    def _fate(self, source: Readable) -> list[Primitive]:
        match self.random.randint(0, 9):
            case 0:
                return [statement("mark_to_drop", named("header", STANDARD))]
            case 1:
                return [statement("truncate", const(self.random.randint(1, 60)))]
            case 2:
                return [statement("assign", field_of(STANDARD, "mcast_grp"), const(self.random.choice((0, GROUP))))]
            case 3:
                return [statement("generate_digest", const(1), const(self.random.randint(1, 2)))]
        port = op("%", bits(source, 4, 1), const(PORTS))
        return [statement("assign", field_of(STANDARD, "egress_spec"), port)]

    def _copy(self, source: Readable) -> list[Primitive]:
        """Return a statement that copies an original packet only; otherwise copying would not end."""
        if not self.copies:
            return self._assign(source)
        kept = const(self.random.randint(1, FIELD_LISTS))
        clone, again = EGRESS if self.egress else INGRESS
        first = _unless(op("==", field_of(META, AGAIN), const(0)), 2)
        made = self.random.choice((statement(clone, const(SESSION), kept), statement(again, kept)))
        return [first, statement("assign", field_of(META, AGAIN), const(1)), made]


def _unless(condition: Tree, skipped: int) -> Primitive:
    """Return a jump over the next statements."""
    return statement("_jump_if_zero", op("b2d", condition), const(skipped))


def _placed(primitive: Primitive, place: int) -> Primitive:
    """Return the primitive at its place: a jump names its target, not the number of skipped statements."""
    if primitive["op"] != "_jump_if_zero":
        return primitive
    condition, skipped = primitive["parameters"]
    return {"op": "_jump_if_zero", "parameters": [condition, const(place + 1 + int(skipped["value"], 16))]}


def _wrapped(tree: Tree) -> Tree:
    return {"type": "expression", "value": tree} if tree["type"] == "expression" else cut_argument(tree)


def cut_argument(tree: Tree) -> Tree:
    """Return a leaf as part of an argument's vector."""
    return {"type": "expression", "value": cut(tree, 16)} if tree["type"] == "local" else tree
