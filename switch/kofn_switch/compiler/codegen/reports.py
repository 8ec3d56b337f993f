"""Statements that write to the switch's log: log_msg, assert and assume."""

from kofn_switch.compiler.codegen.lowering import Lowering
from kofn_switch.compiler.codegen.messages import message_of
from kofn_switch.compiler.ir.expressions import Expression, Vector
from kofn_switch.compiler.ir.program import Primitive

Arguments = tuple[Expression, ...]


def emit_log(low: Lowering, arguments: Arguments) -> None:
    """Write a report of the values. Each value is one word, 2 * limbs + (1 if signed), and then its limbs."""
    statement = Primitive(op="log_msg", arguments=arguments, place=low.place)
    message_of(statement)
    values = arguments[1].items if isinstance(arguments[1], Vector) else ()
    counts = [_limbs(low, value) for value in values]
    low.block.add(f"uint64_t values[{sum(counts) + len(counts) + 1}];")
    at = 0
    for value, count in zip(values, counts, strict=True):
        signed = not low.is_truth(value) and low.negative(value)
        low.block.add(f"values[{at}] = {2 * count + signed};")
        _put(low, f"(values + {at + 1})", value, count)
        at += count + 1
    _report(low, statement, at)


def emit_assertion(low: Lowering, op: str, arguments: Arguments) -> None:
    """Drop and count a packet for which the condition fails."""
    condition = arguments[0]
    holds = low.truth(condition) if low.is_truth(condition) else f"({low.exact_amount(condition)} != 0)"
    with low.block.braces(f"if (!{holds})"):
        low.block.add("const uint64_t *values = NULL;")
        _report(low, Primitive(op=op, arguments=arguments, place=low.place), 0)
        low.block.add("D->exit = 2;", "return;")


def _limbs(low: Lowering, value: Expression) -> int:
    return 1 if low.is_truth(value) else low.limbs_for(value)


def _put(low: Lowering, to: str, value: Expression, count: int) -> None:
    if low.is_truth(value):
        low.block.add(f"{to}[0] = {low.truth(value)};")
    else:
        low.store(to, value, 64 * count)


def _report(low: Lowering, statement: Primitive, limbs: int) -> None:
    number = low.layout.messages[statement]
    low.block.add(f"services(D->core)->report(D->core, {number}, values, {limbs});")
