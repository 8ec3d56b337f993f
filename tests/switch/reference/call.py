"""The operands of a statement: the packet, its arguments, and the program's lasting state."""

from collections.abc import Callable, MutableMapping, MutableSequence, Sequence
from dataclasses import dataclass, field
from random import Random

from kofn_switch.compiler.ir.expressions import Expression, Object
from kofn_switch.compiler.ir.program import Primitive, Program, Target
from kofn_switch.state.entries import LogReport
from tests.switch.reference.expressions import Scope
from tests.switch.reference.meters import MeterCell
from tests.switch.reference.packet import Packet, undefined


@dataclass(slots=True)
class StateCell:
    """The counts of a counter's cell."""

    packets: int = 0
    bytes: int = 0

    def count(self, packet: Packet) -> None:
        self.packets += 1
        self.bytes += packet.counted


@dataclass(slots=True, kw_only=True)
class CallContext:
    """The operands of statements apart from the packet: the program's arrays by name, random numbers, clock, log."""

    program: Program
    target: Target
    registers: MutableMapping[str, MutableSequence[int]]
    counters: MutableMapping[str, MutableSequence[StateCell]]
    meters: MutableMapping[str, MutableSequence[MeterCell]]
    now_us: Callable[[], int]
    reports: list[LogReport]
    random: Random = field(default_factory=Random)

    def scope(self, packet: Packet, arguments: Sequence[int] = (), ahead: bytes = b"") -> Scope:
        """Return the values that an expression can read."""
        return Scope(program=self.program, headers=packet.headers, arguments=arguments, ahead=ahead)


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One statement with its operands."""

    around: CallContext
    packet: Packet
    scope: Scope
    statement: Primitive

    @property
    def arguments(self) -> tuple[Expression, ...]:
        return self.statement.arguments

    def value(self, position: int) -> int:
        """Return an argument as a number."""
        return self.scope.value(self.arguments[position])

    def name(self, position: int) -> str:
        """Return the name of the array or calculation that an argument refers to."""
        argument = self.arguments[position]
        if not isinstance(argument, Object):
            undefined(argument)
        return argument.name
