"""The parser as one C function: a label for each state, gotos between them.

On an error the parser stops with the error's number. Headers extracted before stay valid, and the rest of the packet is
payload.
"""

from collections.abc import Callable

from kofn_switch.compiler.analysis.parser_loops import may_stand_still
from kofn_switch.compiler.codegen import codec, tracing
from kofn_switch.compiler.codegen.block import Block, CodeUnit
from kofn_switch.compiler.codegen.layout import HeaderRef, Layout, identifier, limbs, mask_of
from kofn_switch.compiler.codegen.lowering import Lowering
from kofn_switch.compiler.codegen.operators import Translator
from kofn_switch.compiler.codegen.primitives import Arguments, rule_for
from kofn_switch.compiler.ir.expressions import (
    Constant,
    Expression,
    HeaderOf,
    Lookahead,
    NextUnionMember,
    Operation,
    StackOf,
    walk,
)
from kofn_switch.compiler.ir.program import STILL_MAX, ParserState, Place, Primitive, Transition

NOWHERE = Place(file="", line=0, fragment="")


class ParserWriter:
    """Writes `static uint32_t parse(struct state *D)`."""

    def __init__(self, layout: Layout, unit: CodeUnit) -> None:
        """Make a writer for the parser of the layout's program."""
        self._layout = layout
        self._block = Block(unit)
        self._labels = {name: f"state_{identifier(name)}" for name in layout.program.states}
        self._counts = may_stand_still(layout.program)
        self._statements: dict[str, Callable[[Lowering, Arguments], None]] = {
            "extract": self._extract,
            "extract_VL": self._extract,
            "verify": self._verify,
            "advance": self._advance,
            "shift": lambda low, arguments: self._move(f"({low.exact_amount(arguments[0])} * 8)"),
        }

    def write(self) -> list[str]:
        start = self._layout.program.parser_start
        body = self._block
        body.add(f"uint32_t error = {self._layout.program.errors.get('NoError', 0)};")
        body.add(*(["uint32_t before = 0, still = 0;"] if self._counts else []), f"goto {self._label(start)};")
        for state in self._layout.program.states.values():
            self._state(state)
        body.lines.append("done:")
        body.add("return error;")
        readers = [line for header in _types(self._layout) for line in _reader(header)]
        return [*readers, "static uint32_t parse(struct state *D) {", *body.lines, "}"]

    def _label(self, state: str | None) -> str:
        return "done" if state is None else self._labels[state]

    def _state(self, state: ParserState) -> None:
        self._block.lines.append(f"{self._labels[state.name]}: {{")
        if self._counts:
            self._block.add("if (D->at != before) { before = D->at; still = 0; }")
            self._block.add(f"if (++still > {STILL_MAX}) {self._fail('ParserTimeout')}")
        tracing.state(self._layout, self._block, state.name)
        for statement in state.statements:
            low = Translator(self._layout, self._block, place=statement.place)
            with tracing.watched(low, statement):
                self._statement(low, statement)
        low = Translator(self._layout, self._block, place=NOWHERE)
        self._check_lookahead(*(part for part, _ in state.key))
        for transition in state.transitions:
            self._transition(low, state, transition)
        self._block.add("goto done;", "}")

    def _statement(self, low: Lowering, statement: Primitive) -> None:
        self._check_lookahead(*statement.arguments)
        if statement.op in self._statements:
            self._statements[statement.op](low, statement.arguments)
            return
        rule = rule_for(statement.op, low)
        if rule.leaves:
            raise low.refuse(f"primitive {statement.op} in a parser")
        rule.emit(low, statement.arguments)

    def _fail(self, error: str) -> str:
        return f"{{ error = {self._layout.program.errors.get(error, 0)}; goto done; }}"

    def _check_lookahead(self, *expressions: Expression) -> None:
        inside = [part for expression in expressions for part in walk(expression) if isinstance(part, Lookahead)]
        if inside:
            bits = max(part.offset + part.width for part in inside)
            self._block.add(f"if ((uint64_t)(D->length - D->at) * 8 < {bits}) {self._fail('PacketTooShort')}")

    def _transition(self, low: Lowering, state: ParserState, transition: Transition) -> None:
        goto = f"goto {self._label(transition.next)};"
        if transition.value_set is not None:
            self._block.add(f"if ({self._in_set(low, state, transition.value_set)}) {goto}")
        elif transition.value is None:
            self._block.add(goto)
        else:
            self._block.add(f"if ({' && '.join(self._matches(low, state, transition)) or '1'}) {goto}")

    def _in_set(self, low: Lowering, state: ParserState, name: str) -> str:
        """Look up the key's fields, concatenated without gaps."""
        values = self._layout.program.value_sets[name]
        if sum(width for _, width in state.key) != values.width:
            raise low.refuse(f"value set {name} of {values.width} bits for a key of other bits in state {state.name}")
        joined: Expression = Constant(0)
        for expression, width in state.key:
            part = Operation("&", (expression, Constant(mask_of(width))))
            joined = Operation("|", (Operation("<<", (joined, Constant(width))), part))
        key, count = self._block.name("key"), limbs(values.width)
        self._block.add(f"uint64_t {key}[{count}];")
        low.store(key, joined, 64 * count)
        number = list(self._layout.program.value_sets).index(name)
        return f"in_value_set(&D->in->value_sets[{number}], {key}, {count})"

    def _matches(self, low: Lowering, state: ParserState, transition: Transition) -> list[str]:
        """Return a condition for each key field; the transition's value and mask hold the fields in order, each padded
        to whole bytes."""
        conditions, shift = [], 0
        for expression, width in reversed(state.key):
            ones = mask_of(width)
            value = (transition.value or 0) >> shift & ones
            mask = ones if transition.mask is None else transition.mask >> shift & ones
            shift += (width + 7) // 8 * 8
            if mask:
                field = low.ranges.field(expression)
                whole = mask == ones and not (field is not None and field.signed)
                key = expression if whole else Operation("&", (expression, Constant(mask)))
                conditions.append(low.truth(Operation("==", (key, Constant(value & mask)))))
        return conditions[::-1]

    def _extract(self, low: Lowering, arguments: Arguments) -> None:
        """Extract a header, or the next header of a stack; the second argument is the length of the variable field."""
        match arguments[0]:
            case HeaderOf():
                self._read(low, low.header(arguments[0]), arguments[1:])
            case StackOf(stack):
                following = self._following(stack)
                self._read(low, self._layout.element(stack, following), arguments[1:])
                self._block.add(f"{following}++;")
            case NextUnionMember(stack, member):
                following = self._following(stack)
                self._read(low, self._layout.union_member(stack, member, following), arguments[1:])
                self._block.add(f"{following}++;")
            case _:
                raise low.refuse("this form of extract")

    def _following(self, stack: str) -> str:
        """Return the index of a stack's next header or union; write a check that fails when the stack is full."""
        following = self._layout.next_index(stack)
        self._block.add(f"if ({following} >= {self._layout.depth(stack)}) {self._fail('StackOutOfBounds')}")
        return following

    def _read(self, low: Lowering, header: HeaderRef, lengths: Arguments) -> None:
        variable = header.type.variable
        if (variable is not None) != bool(lengths):
            raise low.refuse(f"extract of a header of type {header.type.name} with{'out' * (not lengths)} a length")
        size = header.bytes
        if variable is not None:
            size = self._variable_size(low, header, lengths[0])
        else:
            self._block.add(f"if (D->length - D->at < {size}) {self._fail('PacketTooShort')}")
        self._block.add(
            f"read_{identifier(header.type.name)}(&{header.struct}, D->packet + D->at);",
            *header.make_valid(),
            f"D->at += {size};",
        )

    def _variable_size(self, low: Lowering, header: HeaderRef, length: Expression) -> str:
        """Return a C name for the size in bytes of a header whose variable field gets `length` bits; set both.

        As on BMv2, the packet must also have room for the length that the field has from an earlier extract.
        """
        bits, size, room = self._block.name("bits"), self._block.name("size"), self._block.name("room")
        self._block.add(
            f"const uint64_t {bits} = {low.exact_amount(length)};",
            f"if ({bits} % 8 || {bits} > INT32_MAX) {self._fail('ParserInvalidArgument')}",
            f"const uint64_t {size} = {header.type.fixed_width // 8} + {bits} / 8;",
            f"const uint64_t {room} = {size} + {header.bits} / 8;",
            f"if (D->length - D->at < {room}) {self._fail('PacketTooShort')}",
            f"if ({room} > {header.type.width // 8}) {self._fail('HeaderTooShort')}",
            f"{header.bits} = (uint32_t){bits};",
        )
        return size

    def _verify(self, low: Lowering, arguments: Arguments) -> None:
        condition, error = arguments
        self._block.add(f"if (!{low.truth(condition)}) {{ error = (uint32_t){low.narrow(error)}; goto done; }}")

    def _advance(self, low: Lowering, arguments: Arguments) -> None:
        self._move(low.exact_amount(arguments[0]))

    def _move(self, bits: str) -> None:
        name = self._block.name("bits")
        self._block.add(f"const uint64_t {name} = {bits};")
        self._block.add(f"if ({name} % 8) {self._fail('ParserInvalidArgument')}")
        self._block.add(f"if (D->length - D->at < {name} / 8) {self._fail('PacketTooShort')}")
        self._block.add(f"D->at += (uint32_t)({name} / 8);")


def _types(layout: Layout) -> list[HeaderRef]:
    wire = [header for header in layout.program.headers.values() if not header.metadata]
    return [HeaderRef(struct="h[0]", valid="1", type=kind) for kind in {h.type.name: h.type for h in wire}.values()]


def _reader(header: HeaderRef) -> list[str]:
    name = identifier(header.type.name)
    lines = codec.load_header(header.type, "(*h)", "from")
    head = f"static inline void read_{name}(struct t_{name} *h, const uint8_t *from) {{"
    return [head, *[f"    {line}" for line in lines], "}"]


def header_writers(layout: Layout) -> list[str]:
    """Return functions `write_<type>(to, header)` that put a header's bytes at `to`."""
    lines = []
    for header in _types(layout):
        name = identifier(header.type.name)
        body = codec.store_header(header.type, "(*h)", "to")
        head = f"static inline void write_{name}(uint8_t *to, const struct t_{name} *h) {{"
        lines += [head, *[f"    {line}" for line in body], "}"]
    return lines
