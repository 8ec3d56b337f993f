"""Random parsers: states that only lead to later ones."""

from dataclasses import dataclass, field
from random import Random
from typing import Any

from tests.switch.build import Tree, const, op
from tests.switch.build import field as field_of
from tests.switch.suite.random_programs.expressions import bits, ints, truth
from tests.switch.suite.random_programs.shape import META, STACK, VARIABLE, Headers, argument, hexadecimal

ERRORS = [
    *(["NoError", 0], ["PacketTooShort", 1], ["NoMatch", 2], ["StackOutOfBounds", 3], ["HeaderTooShort", 4]),
    *(["ParserTimeout", 5], ["ParserInvalidArgument", 6]),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class ParserMaker:
    """Makes the parser."""

    random: Random
    headers: Headers
    tame: bool
    sets: list["ValueSet"] = field(default_factory=list)  # created on the way
    _variable: set[str] = field(default_factory=set)  # headers that some state extracts

    def parser(self, states: int) -> dict[str, Any]:
        """Return the JSON of a parser with `states` states."""
        made = [self._state(number, states) for number in range(states)]
        return {"name": "parser", "id": 0, "init_state": "state0", "parse_states": made}

    def _state(self, number: int, states: int) -> dict[str, Any]:
        operations: list[dict[str, Any]] = []
        keys: list[tuple[Tree, int]] = []
        for _ in range(self.random.randint(1, 3)):
            made, key = self._operation(first=number == 0 and not operations)
            operations.append(made)
            keys += key
        if not self.tame:
            keys.append(({"type": "lookahead", "value": [0, 8]}, 8))
        key = self.random.sample(keys, min(len(keys), self.random.choice((0, 1, 1, 2))))
        later = [f"state{after}" for after in range(number + 1, states)]
        return {
            "name": f"state{number}",
            "id": number,
            "parser_ops": operations,
            "transition_key": [tree for tree, _ in key],
            "transitions": self._transitions([width for _, width in key], [*later, *later, None]),
        }

    def _operation(self, *, first: bool) -> tuple[dict[str, Any], list[tuple[Tree, int]]]:
        """Return a statement, and the keys that a following select may use."""
        source = self.headers.readable(self.random)
        kind = 0 if first else self.random.randint(0, 8)
        if kind <= 2:
            return self._extract()
        if kind == 3:
            keys = [(field_of(META, member.name), member.width) for member in self.headers.fields(META)[:3]]
            return {"op": "advance", "parameters": [const(8 * self.random.randint(0, 3))]}, keys
        if kind == 4 and self.random.random() < 0.3:
            number = self.random.randint(1, len(ERRORS) - 1)
            return {"op": "verify", "parameters": [truth(source, 2), const(number)]}, []
        member = self.random.choice(self.headers.fields(META))
        value = self._ahead(member.width) if kind == 5 else (ints if member.signed else bits)(source, member.width, 2)
        key = [] if member.signed else [(field_of(META, member.name), member.width)]
        return {"op": "set", "parameters": [field_of(META, member.name), argument(value)]}, key

    def _ahead(self, width: int) -> Tree:
        return {"type": "lookahead", "value": [0, width]}

    def _extract(self) -> tuple[dict[str, Any], list[tuple[Tree, int]]]:
        if self.random.random() < 0.3:
            kind = self.headers.stack[0]
            keys = [
                ({"type": "stack_field", "value": [STACK, one.name]}, one.width) for one in self.headers.fields(kind)
            ]
            return {"op": "extract", "parameters": [{"type": "stack", "value": STACK}]}, keys
        if self.random.random() < 0.2 and not (self.tame and self._variable):
            return self._extract_variable()
        others = (*self.headers.stack, *VARIABLE)
        header = self.random.choice([name for name in self.headers.names if name not in others])
        keys = [(field_of(header, one.name), one.width) for one in self.headers.fields(header)]
        return {"op": "extract", "parameters": [{"type": "regular", "value": header}]}, keys

    def _extract_variable(self) -> tuple[dict[str, Any], list[tuple[Tree, int]]]:
        header, source = self.random.choice(VARIABLE), self.headers.readable(self.random)
        self._variable.add(header)
        length = op("*", bits(source, 4, 1), const(self.random.choice((8, 8, 8, 4))))
        target = {"type": "regular", "value": header}
        return {"op": "extract_VL", "parameters": [target, argument(length)]}, [(field_of(header, "f0"), 8)]

    def _transitions(self, widths: list[int], ends: list[str | None]) -> list[dict[str, Any]]:
        cases = []
        for _ in range(self.random.randint(0, 3) if widths else 0):
            masks = [self.random.choice((1, 3, (1 << width) - 1)) & ((1 << width) - 1) for width in widths]
            values = [self.random.getrandbits(width) & mask for width, mask in zip(widths, masks, strict=True)]
            if not self.tame and self.random.random() < 0.2:
                self.sets.append(self._value_set(widths))
                case = {"type": "parse_vset", "value": self.sets[-1].name, "mask": None}
                cases.append({**case, "next_state": self.random.choice(ends)})
                continue
            case = {"type": "hexstr", "value": _joined(values, widths), "next_state": self.random.choice(ends)}
            cases.append({**case, "mask": self.random.choice((_joined(masks, widths), None))})
        if self.random.random() < 0.8:
            cases.append({"type": "default", "value": None, "mask": None, "next_state": self.random.choice(ends)})
        return cases

    def _value_set(self, widths: list[int]) -> "ValueSet":
        keys = tuple(self.random.getrandbits(sum(widths)) for _ in range(self.random.randint(0, 4)))
        return ValueSet(name=f"set{len(self.sets)}", width=sum(widths), keys=keys)


@dataclass(frozen=True, kw_only=True)
class ValueSet:
    """A value set, and the keys that the control plane inserts."""

    name: str
    width: int
    keys: tuple[int, ...]


def _joined(values: list[int], widths: list[int]) -> str:
    """Return the values, each padded to whole bytes."""
    return "0x" + "".join(hexadecimal(value, width)[2:] for value, width in zip(values, widths, strict=True))


__all__ = ["ERRORS", "ParserMaker", "op"]
