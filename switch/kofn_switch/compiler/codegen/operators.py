"""The rules that turn operators into C: for numbers of up to 64 bits, for wider numbers, for conditions.

Operators that work limb by limb on wide numbers are in `kernels.LimbLoop`; the rules of the results' sizes are
`bounds.RULES`.
"""

from collections.abc import Callable

from kofn_switch.compiler.analysis.bounds import Bounds
from kofn_switch.compiler.codegen.kernels import LimbLoop
from kofn_switch.compiler.codegen.layout import limbs, literal, mask_of
from kofn_switch.compiler.codegen.lowering import Lowering, within
from kofn_switch.compiler.ir.expressions import Constant, Expression, FieldOf, HeaderOf, Operation, UnionOf

Operands = tuple[Expression, ...]
NarrowRule = Callable[[Lowering, Operands, int], str]
WideRule = Callable[[Lowering, str, Operands, int], None]
TruthRule = Callable[[Lowering, str, Operands], str]


def _constant(low: Lowering, expression: Expression, what: str) -> int:
    if not isinstance(expression, Constant):
        raise low.refuse(f"{what} of a width that is not constant")
    return expression.value


# Up to 64 bits


def _ring(sign: str) -> NarrowRule:
    def rule(low: Lowering, operands: Operands, bits: int) -> str:
        left, right = operands if len(operands) == 2 else (Constant(0), operands[0])
        return f"({low.narrow(left, bits)} {sign} {low.narrow(right, bits)})"

    return rule


def _and(low: Lowering, operands: Operands, bits: int) -> str:
    left, right = operands
    if isinstance(right, Constant):
        keep = right.value & mask_of(bits)
        fits = within(low.ranges.of(left), Bounds(0, right.value)) and right.value & (right.value + 1) == 0
        if keep == mask_of(bits) or fits:
            return low.narrow(left, bits)
        return f"({low.narrow(left, keep.bit_length() or 1)} & {literal(keep)})"
    return f"({low.narrow(left, bits)} & {low.narrow(right, bits)})"


def _not(low: Lowering, operands: Operands, bits: int) -> str:
    return f"(~{low.narrow(operands[0], bits)})"


def _shift_left(low: Lowering, operands: Operands, bits: int) -> str:
    value, by = operands
    if isinstance(by, Constant):
        return f"({low.narrow(value, bits)} << {by.value})" if by.value < 64 else literal(0)
    return f"shift_left({low.narrow(value, bits)}, {low.exact_amount(by)})"


def _shift_right(low: Lowering, operands: Operands, bits: int) -> str:
    value, by = operands
    found = low.exact(value)
    if found is None:
        count = max(low.limbs_for(value), limbs(bits))
        name = low.temporary(count)
        _wide_shift_right(low, name, operands, 64 * count)
        return f"{name}[0]"
    text, signed = found
    if isinstance(by, Constant) and not signed:
        return f"({text} >> {by.value})" if by.value < 64 else literal(0)
    return f"{'shift_right_signed' if signed else 'shift_right'}({text}, {low.exact_amount(by)})"


def _exact_pair(function: str) -> NarrowRule:
    def rule(low: Lowering, operands: Operands, bits: int) -> str:
        left, right = (low.exact(operand) for operand in operands)
        if left is None or right is None or left[1] or right[1]:
            return f"{_through_wide(low, operands, function)}[0]"
        return f"{function}({left[0]}, {right[0]})"

    return rule


def _through_wide(low: Lowering, operands: Operands, function: str) -> str:
    count = low.limbs_for(*operands)
    if any(low.negative(operand) for operand in operands):
        raise low.refuse(f"{function} of negative numbers")
    quotient, rest = low.temporary(count), low.temporary(count)
    left, right = (low.wide(operand, 64 * count) for operand in operands)
    low.block.add(f"wide_divide({quotient}, {rest}, {left}, {right}, {count});")
    return quotient if function == "divide" else rest


def _choice(low: Lowering, operands: Operands, bits: int) -> str:
    condition, then, otherwise = operands
    return f"({low.truth(condition)} ? {low.narrow(then, bits)} : {low.narrow(otherwise, bits)})"


def _two_complement(low: Lowering, operands: Operands, bits: int) -> str:
    width = _constant(low, operands[1], "two_comp_mod")
    if width >= bits or width >= 64:
        return low.narrow(operands[0], bits)
    return f"sign_extend({low.narrow(operands[0], width)}, {width})"


def _saturate(signed: bool) -> NarrowRule:
    def rule(low: Lowering, operands: Operands, bits: int) -> str:
        width = _constant(low, operands[1], "a saturating cast")
        low_end, high_end = (-(1 << (width - 1)), mask_of(width - 1)) if signed else (0, mask_of(width))
        value = operands[0]
        if within(low.ranges.of(value), Bounds(low_end, high_end)):
            return low.narrow(value, bits)
        found = low.exact(value)
        if found is None:
            count = low.limbs_for(value, Constant(-1), Constant(mask_of(width)))
            name = low.temporary(count)
            _clamp(low, name, value, width, count, signed)
            return f"{name}[0]"
        text = low.block.name("v")
        low.block.add(f"const {'int64_t' if found[1] else 'uint64_t'} {text} = (int64_t){found[0]};")
        below = f"{text} < {_signed(low_end)} ? {literal(low_end)} : " if found[1] else ""
        limit = _signed(min(high_end, mask_of(63))) if found[1] else literal(high_end)
        return f"({below}{text} > {limit} ? {literal(high_end)} : (uint64_t){text})"

    return rule


def _signed(value: int) -> str:
    return f"(int64_t){literal(value)}"


def _clamp(low: Lowering, to: str, value: Expression, width: int, count: int, signed: bool) -> None:
    low.store(to, value, 64 * count)
    low.block.add(f"wide_clamp_{'signed' if signed else 'unsigned'}({to}, {count}, {width});")


def _from_truth(low: Lowering, operands: Operands, bits: int) -> str:
    return f"(uint64_t){low.truth(operands[0])}"


def _last_index(low: Lowering, operands: Operands, bits: int) -> str:
    return f"((uint64_t){low.layout.next_index(low.stack_name(operands[0]))} - 1)"


def _size(low: Lowering, operands: Operands, bits: int) -> str:
    return f"(uint64_t){low.layout.next_index(low.stack_name(operands[0]))}"


NARROW: dict[str, NarrowRule] = {
    "+": _ring("+"),
    "-": _ring("-"),
    "*": _ring("*"),
    "|": _ring("|"),
    "^": _ring("^"),
    "&": _and,
    "~": _not,
    "<<": _shift_left,
    ">>": _shift_right,
    "/": _exact_pair("divide"),
    "%": _exact_pair("modulo"),
    "?": _choice,
    "two_comp_mod": _two_complement,
    "sat_cast": _saturate(signed=True),
    "usat_cast": _saturate(signed=False),
    "b2d": _from_truth,
    "last_stack_index": _last_index,
    "size_stack": _size,
}


# More than 64 bits


def _wide_shift_left(low: Lowering, to: str, operands: Operands, bits: int) -> None:
    value, by = operands
    source = low.temporary(limbs(bits))
    low.store(source, value, bits)
    low.block.add(f"wide_shift_left({to}, {source}, {limbs(bits)}, {low.exact_amount(by)});")


def _wide_shift_right(low: Lowering, to: str, operands: Operands, bits: int) -> None:
    value, by = operands
    count = max(low.limbs_for(value), limbs(bits))
    source, shifted = low.temporary(count), low.temporary(count)
    low.store(source, value, 64 * count)
    negative = int(low.negative(value))
    low.block.add(
        f"wide_shift_right({shifted}, {source}, {count}, {low.exact_amount(by)}, {negative});",
        f"wide_copy({to}, {shifted}, {limbs(bits)});",
    )


def _wide_multiply(low: Lowering, to: str, operands: Operands, bits: int) -> None:
    product = low.temporary(limbs(bits))
    left, right = (low.wide(operand, bits) for operand in operands)
    low.block.add(
        f"wide_multiply({product}, {left}, {right}, {limbs(bits)});", f"wide_copy({to}, {product}, {limbs(bits)});"
    )


def _wide_divide(function: str) -> WideRule:
    def rule(low: Lowering, to: str, operands: Operands, bits: int) -> None:
        result = _through_wide(low, operands, function)
        low.block.add(f"wide_extend({to}, {limbs(bits)}, {result}, {low.limbs_for(*operands)}, 0);")

    return rule


def _wide_choice(low: Lowering, to: str, operands: Operands, bits: int) -> None:
    condition, then, otherwise = operands
    result = low.temporary(limbs(bits))
    with low.block.braces(f"if ({low.truth(condition)})"):
        low.store(result, then, bits)
    with low.block.braces("else"):
        low.store(result, otherwise, bits)
    low.block.add(f"wide_copy({to}, {result}, {limbs(bits)});")


def _wide_two_complement(low: Lowering, to: str, operands: Operands, bits: int) -> None:
    width = _constant(low, operands[1], "two_comp_mod")
    result = low.temporary(limbs(bits))
    low.store(result, operands[0], bits)
    low.block.add(f"wide_sign_extend({result}, {limbs(bits)}, {width});", f"wide_copy({to}, {result}, {limbs(bits)});")


def _wide_saturate(signed: bool) -> WideRule:
    def rule(low: Lowering, to: str, operands: Operands, bits: int) -> None:
        width = _constant(low, operands[1], "a saturating cast")
        count = max(low.limbs_for(operands[0], Constant(-1), Constant(mask_of(width))), limbs(bits))
        result = low.temporary(count)
        _clamp(low, result, operands[0], width, count, signed)
        low.block.add(f"wide_copy({to}, {result}, {limbs(bits)});")

    return rule


def _limbwise(op: str) -> WideRule:
    return lambda low, to, operands, bits: LimbLoop(low, bits).emit(to, Operation(op, operands))


WIDE: dict[str, WideRule] = {
    **{op: _limbwise(op) for op in sorted(LimbLoop.OPERATORS)},
    "<<": _wide_shift_left,
    ">>": _wide_shift_right,
    "*": _wide_multiply,
    "/": _wide_divide("divide"),
    "%": _wide_divide("modulo"),
    "?": _wide_choice,
    "two_comp_mod": _wide_two_complement,
    "sat_cast": _wide_saturate(signed=True),
    "usat_cast": _wide_saturate(signed=False),
}


# Conditions


def _compare(low: Lowering, op: str, operands: Operands) -> str:
    left, right = operands
    if low.is_truth(left):
        return f"({low.truth(left)} {op} {low.truth(right)})"
    if isinstance(left, HeaderOf) and isinstance(right, HeaderOf):
        return _compare_headers(low, op, left, right)
    if isinstance(left, UnionOf) and isinstance(right, UnionOf):
        return _compare_unions(low, op, left, right)
    both = [low.ranges.of(operand) for operand in operands]
    if all(within(one, Bounds(0, mask_of(64))) for one in both):
        return f"({low.narrow(left)} {op} {low.narrow(right)})"
    if all(within(one, Bounds(-(1 << 63), mask_of(63))) for one in both):
        return f"((int64_t){low.narrow(left)} {op} (int64_t){low.narrow(right)})"
    return _compare_wide(low, op, left, right)


def _compare_wide(low: Lowering, op: str, left: Expression, right: Expression) -> str:
    count = low.limbs_for(left, right)
    signed = int(low.negative(left) or low.negative(right))
    pointers = [low.wide(operand, 64 * count) for operand in (left, right)]
    return f"(wide_compare({pointers[0]}, {pointers[1]}, {count}, {signed}) {op} 0)"


def _compare_headers(low: Lowering, op: str, left: HeaderOf, right: HeaderOf) -> str:
    """Return the C condition that two headers are equal: both are valid, and all their fields are equal."""
    a, b = low.header(left), low.header(right)
    equal = [a.valid, b.valid]
    for field in a.type.fields:
        fields = FieldOf(left.header, field.name), FieldOf(right.header, field.name)
        equal.append(low.truth(Operation("==", fields)))
    text = f"({' && '.join(equal)})"
    return text if op == "==" else f"(!{text})"


def _compare_unions(low: Lowering, op: str, left: UnionOf, right: UnionOf) -> str:
    """Return the C condition that two unions are equal: the same member of both is valid, and its fields are equal."""
    unions = low.layout.program.unions
    pairs = zip(unions[left.union].members.values(), unions[right.union].members.values(), strict=True)
    equal = [_compare_headers(low, "==", HeaderOf(a), HeaderOf(b)) for a, b in pairs]
    text = f"({' || '.join(equal)})"
    return text if op == "==" else f"(!{text})"


def _valid_union(low: Lowering, _: str, operands: Operands) -> str:
    match operands[0]:
        case UnionOf(name) | HeaderOf(name) if name in low.layout.program.unions:  # p4c: stack[1] is a header
            members = low.layout.program.unions[name].members.values()
        case _:
            raise low.refuse("valid_union of something other than a union")
    return f"({' || '.join(low.layout.header(member).valid for member in members)})"


def _join(sign: str) -> TruthRule:
    return lambda low, _, operands: f"({low.truth(operands[0])} {sign} {low.truth(operands[1])})"


def _to_truth(low: Lowering, op: str, operands: Operands) -> str:
    return _compare(low, "!=", (operands[0], Constant(0)))


TRUTH: dict[str, TruthRule] = {
    **dict.fromkeys(("==", "!=", "<", "<=", ">", ">="), _compare),
    "and": _join("&&"),
    "or": _join("||"),
    "not": lambda low, _, operands: f"(!{low.truth(operands[0])})",
    "d2b": _to_truth,
    "valid": lambda low, _, operands: f"({low.header(operands[0]).valid} != 0)",
    "valid_union": _valid_union,
}


class Translator(Lowering):
    """Turns expressions into C by the rules above."""

    NARROW = NARROW
    WIDE = WIDE
    TRUTH = TRUTH
