"""The statements of actions, of parser states and of the deparser, one after the other, and their jumps."""

from collections.abc import Callable, Mapping, Sequence

from switch.compiler.program import Object, Primitive, Vector
from switch.reference.call import Call, Surroundings
from switch.reference.header_statements import HEADER_STATEMENTS
from switch.reference.packet import Packet, undefined, wrap
from switch.reference.state_statements import STATE_STATEMENTS


def execute(
    around: Surroundings,
    packet: Packet,
    primitives: Sequence[Primitive],
    arguments: Sequence[int],
    ahead: bytes = b"",
) -> None:
    """Run the statements; a jump goes to a statement by its number.  An exit ends the control after them."""
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
        call = Call(around=around, packet=packet, scope=scope, arguments=primitive.arguments)
        PRIMITIVES[primitive.op](call)
        at += 1


# What is to become of the packet


def _mark_to_drop(call: Call) -> None:
    call.packet.headers.set_meta("egress_spec", call.around.target.drop_port)
    call.packet.headers.set_meta("mcast_grp", 0)


def _clone(call: Call) -> None:
    call.packet.clone = (wrap(call.value(0), 15), wrap(call.value(1), 16))


def _digest(call: Call) -> None:
    call.packet.digest = call.value(1)


def _resubmit(call: Call) -> None:
    call.packet.resubmit = call.value(0) or None


def _recirculate(call: Call) -> None:
    call.packet.recirculate = call.value(0) or None


def _truncate(call: Call) -> None:
    """The shortest of several lengths holds."""
    length = wrap(call.value(0), 64)
    call.packet.limit = length if call.packet.limit is None else min(length, call.packet.limit)


def _exit(call: Call) -> None:
    call.packet.exited = True


def _assert(call: Call) -> None:
    call.packet.failed = not call.scope.truth(call.arguments[0])


def _log(call: Call) -> None:
    text, vector = call.arguments
    if not isinstance(text, Object) or not isinstance(vector, Vector):
        undefined(text)
    call.around.log(fill(text.name, [call.scope.value(item) for item in vector.items]))


def fill(text: str, values: Sequence[int]) -> str:
    """The text of a log_msg: each {} takes a value."""
    parts = text.split("{}")
    shown = [str(value) for value in values[: len(parts) - 1]]
    shown += ["{}"] * (len(parts) - 1 - len(shown))
    return "".join(part + value for part, value in zip(parts, [*shown, ""], strict=True))


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
