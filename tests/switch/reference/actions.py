"""The statements of actions, of parser states and of the deparser, in order, with their jumps."""

from collections.abc import Callable, Mapping, Sequence

from kofn_switch.compiler.codegen.messages import message_of
from kofn_switch.compiler.ir.expressions import Vector
from kofn_switch.compiler.ir.program import Primitive
from kofn_switch.state.entries import LogReport
from tests.switch.reference.call import Call, CallContext
from tests.switch.reference.header_statements import HEADER_STATEMENTS
from tests.switch.reference.packet import Packet, undefined, wrap
from tests.switch.reference.state_statements import STATE_STATEMENTS


def execute(
    around: CallContext,
    packet: Packet,
    primitives: Sequence[Primitive],
    arguments: Sequence[int],
    ahead: bytes = b"",
) -> None:
    """Run the statements; a jump goes to a statement by its number. An exit ends the control after them."""
    at = 0
    while at < len(primitives) and not packet.failed:
        primitive = primitives[at]
        scope = around.scope(packet, arguments, ahead)
        if primitive.op == "_jump":
            at = scope.value(primitive.arguments[0])
            continue
        if primitive.op == "_jump_if_zero":
            condition, target = primitive.arguments
            at = at + 1 if scope.truth(condition) else scope.value(target)
            continue
        if primitive.op not in PRIMITIVES:
            undefined(f"primitive {primitive.op}")
        call = Call(around=around, packet=packet, scope=scope, statement=primitive)
        PRIMITIVES[primitive.op](call)
        at += 1


# Requests for the packet's fate


def _mark_to_drop(call: Call) -> None:
    for target, value in zip(call.arguments, (call.around.target.drop_port, 0), strict=False):
        call.scope.assign(target, value)


def _clone(call: Call) -> None:
    call.packet.clone = (wrap(call.value(0), 15), wrap(call.value(1), 16))


def _digest(call: Call) -> None:
    call.packet.digest = call.value(1)


def _resubmit(call: Call) -> None:
    call.packet.resubmit = call.value(0) or None


def _recirculate(call: Call) -> None:
    call.packet.recirculate = call.value(0) or None


def _truncate(call: Call) -> None:
    """Truncate the packet to the shortest of all requested lengths."""
    length = wrap(call.value(0), 64)
    call.packet.limit = length if call.packet.limit is None else min(length, call.packet.limit)


def _exit(call: Call) -> None:
    call.packet.exited = True


def _assert(call: Call) -> None:
    """Stop a packet for which the condition fails."""
    call.packet.failed = not call.scope.truth(call.arguments[0])
    if call.packet.failed:
        _report(call, [])


def _log(call: Call) -> None:
    values = call.arguments[1]
    if not isinstance(values, Vector):
        undefined(values)
    _report(call, [call.scope.value(item) for item in values.items])


def _report(call: Call, values: list[int]) -> None:
    message = message_of(call.statement)
    call.around.reports.append(LogReport(text=message.fill(values), failed=message.failed))


PRIMITIVES: Mapping[str, Callable[[Call], None]] = {
    **HEADER_STATEMENTS,
    **STATE_STATEMENTS,
    "mark_to_drop": _mark_to_drop,
    "clone_ingress_pkt_to_egress": _clone,
    "clone_egress_pkt_to_egress": _clone,
    "generate_digest": _digest,
    "resubmit": _resubmit,
    "recirculate": _recirculate,
    "truncate": _truncate,
    "exit": _exit,
    "assert": _assert,
    "assume": _assert,
    "log_msg": _log,
    "no_op": lambda call: None,
}
