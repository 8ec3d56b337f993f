"""The parser: states that extract headers until one leads nowhere or an error occurs.

After an error the extracted headers stay, and the rest of the packet is payload.
"""

from collections.abc import Mapping, Set

from kofn_switch.compiler.ir.expressions import Expression, HeaderOf, Lookahead, NextUnionMember, StackOf, walk
from kofn_switch.compiler.ir.program import STILL_MAX, ParserState, Primitive, Program, Transition
from tests.switch.reference.actions import execute
from tests.switch.reference.call import CallContext
from tests.switch.reference.expressions import Scope
from tests.switch.reference.packet import Packet, undefined, wrap

INT_MAX = 0x7FFFFFFF  # BMv2 takes this, which is no whole number of bytes, for a longer length


class ParserError(Exception):
    """The parser stops; `code` is the error's number."""

    def __init__(self, code: int) -> None:
        """Take the number of the program's error."""
        super().__init__(code)
        self.code = code


class Parser:
    """One packet's way through the parser."""

    def __init__(self, around: CallContext, packet: Packet, value_sets: Mapping[str, Set[int]]) -> None:
        """Take `value_sets`, keys by the set's name."""
        self._around = around
        self._program: Program = around.program
        self._packet = packet
        self._value_sets = value_sets
        self._at = 0  # bytes extracted

    def run(self) -> int:
        """Parse, leave the rest in the packet, and return the error's number, that of NoError for none."""
        error = self._program.errors.get("NoError", 0)
        try:
            name, still = self._program.parser_start, 1
            while name is not None:
                if still > STILL_MAX:
                    raise self._fail("ParserTimeout")
                before = self._at
                name = self._state(self._program.states[name])
                still = still + 1 if self._at == before else 1
        except ParserError as stop:
            error = stop.code
        self._packet.rest = self._packet.arrived[self._at :]
        return error

    def _state(self, state: ParserState) -> str | None:
        for statement in state.statements:
            self._statement(statement)
        if state.key:
            self._check_lookahead(*(part for part, _ in state.key))
        for transition in state.transitions:
            if self._matches(state, transition):
                return transition.next
        return None

    def _fail(self, error: str) -> ParserError:
        return ParserError(self._program.errors.get(error, 0))

    def _statement(self, statement: Primitive) -> None:
        self._check_lookahead(*statement.arguments)
        match statement.op, statement.arguments:
            case "extract", (target,):
                self._extract(target, None)
            case "extract_VL", (target, length):
                self._extract(target, self._scope.value(length))
            case "verify", (condition, error):
                if not self._scope.truth(condition):
                    raise ParserError(self._scope.value(error))
            case "advance", (bits,):
                self._advance(self._scope.value(bits))
            case "shift", (size,):
                self._advance(8 * self._scope.value(size))
            case _:
                execute(self._around, self._packet, [statement], (), self._ahead)

    @property
    def _ahead(self) -> bytes:
        return self._packet.arrived[self._at :]

    @property
    def _scope(self) -> Scope:
        return self._around.scope(self._packet, (), self._ahead)

    def _check_lookahead(self, *expressions: Expression) -> None:
        """Check that all bits of lookaheads are there."""
        for expression in expressions:
            for part in walk(expression):
                if isinstance(part, Lookahead) and part.offset + part.width > 8 * len(self._ahead):
                    raise self._fail("PacketTooShort")

    def _extract(self, target: Expression, length: int | None) -> None:
        name = self._target(target)
        instance = self._packet.headers[name]
        if length is not None and (length % 8 or length > INT_MAX):
            raise self._fail("ParserInvalidArgument")
        bits = instance.type.fixed_width + (length or 0)
        room = bits + instance.length  # plus the length of an earlier extract, as in BMv2
        if room > 8 * len(self._ahead):
            raise self._fail("PacketTooShort")
        if room > instance.type.width:
            raise self._fail("HeaderTooShort")
        instance.extract(self._ahead, length or 0)
        self._packet.headers.set_valid(name, True)
        self._at += bits // 8
        if isinstance(target, StackOf | NextUnionMember):
            self._packet.headers.next[target.stack] += 1

    def _target(self, target: Expression) -> str:
        following = self._packet.headers.next
        match target:
            case HeaderOf(header):
                return header
            case StackOf(stack):
                members = self._program.stacks[stack].members
                if following[stack] < len(members):
                    return members[following[stack]]
            case NextUnionMember(stack, member):
                unions = self._program.union_stacks[stack].unions
                if following[stack] < len(unions):
                    return self._program.unions[unions[following[stack]]].members[member]
            case _:
                undefined(target)
        raise self._fail("StackOutOfBounds")

    def _advance(self, bits: int) -> None:
        if bits % 8:
            raise self._fail("ParserInvalidArgument")
        if bits > 8 * len(self._ahead):
            raise self._fail("PacketTooShort")
        self._at += bits // 8

    def _matches(self, state: ParserState, transition: Transition) -> bool:
        """Compare the key. Cases hold its fields in order, each padded with zeros to whole bytes; value sets do not."""
        if transition.value_set is not None:
            mask = transition.mask
            known = {self._padded(state, key) for key in self._value_sets[transition.value_set]}
            key = self._key(state)
            return key in known if mask is None else key & mask in {value & mask for value in known}
        if transition.value is None:
            return True
        if transition.mask is None:
            return self._key(state) == transition.value
        return self._key(state) & transition.mask == transition.value & transition.mask

    def _key(self, state: ParserState) -> int:
        key = 0
        for part, width in state.key:
            key = key << _padded_width(width) | wrap(self._scope.value(part), width)
        return key

    def _padded(self, state: ParserState, key: int) -> int:
        """Return a key without gaps in the form of cases."""
        result, below = 0, sum(width for _, width in state.key)
        for _, width in state.key:
            below -= width
            result = result << _padded_width(width) | wrap(key >> below, width)
        return result


def _padded_width(width: int) -> int:
    return (width + 7) // 8 * 8
