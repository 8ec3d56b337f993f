"""Turns expressions into C, at the width that each expression needs.

An expression has three forms: `narrow`, a uint64_t that is correct modulo 2^bits; `wide`, an array of limbs that is
correct modulo 2^bits; `truth`, a C condition. Trees of wide operands that work limb by limb (fields, constants, & | ^ ~
+ -) become one loop, a "kernel". The rules of the operators are tables: a new operator is an entry in `bounds.RULES`
and in `operators.NARROW` (and `operators.WIDE`), or in `operators.TRUTH`; `operators.Translator` is the class Lowering
with these tables.
"""

from collections.abc import Callable, Mapping
from typing import ClassVar

from kofn_switch.compiler.analysis.bounds import Bounds
from kofn_switch.compiler.codegen.layout import HeaderRef, limbs, literal, mask_of
from kofn_switch.compiler.codegen.references import References, word_of
from kofn_switch.compiler.ir.expressions import (
    Argument,
    Constant,
    Expression,
    FieldOf,
    Lookahead,
    Operation,
    Truth,
)
from kofn_switch.compiler.ir.program import Field

LIMBS_MAX = 256
WORD = Bounds(0, mask_of(64))
SIGNED_WORD = Bounds(-(1 << 63), (1 << 63) - 1)


def within(inner: Bounds | None, outer: Bounds) -> bool:
    """Return whether all of `inner` lies in `outer`."""
    return inner is not None and outer.low <= inner.low and inner.high <= outer.high


class Lowering(References):
    """Turns the expressions of one function into C; the statements that they need go to the block first."""

    NARROW: ClassVar[Mapping[str, Callable[["Lowering", tuple[Expression, ...], int], str]]]
    WIDE: ClassVar[Mapping[str, Callable[["Lowering", str, tuple[Expression, ...], int], None]]]
    TRUTH: ClassVar[Mapping[str, Callable[["Lowering", str, tuple[Expression, ...]], str]]]

    # Up to 64 bits

    def narrow(self, expression: Expression, bits: int = 64) -> str:
        """Return a uint64_t expression that equals `expression` modulo 2^bits; higher bits are undefined."""
        match expression:
            case Constant(value):
                return literal(value & mask_of(bits))
            case Argument(index):
                return f"p[{self._offsets[index]}]"
            case FieldOf(header, "$valid$"):
                return f"(uint64_t){self.layout.header(header).valid}"
            case Lookahead(offset, width):
                return f"load_bits(D->packet, (uint64_t)D->at * 8 + {offset + max(width - 64, 0)}, {min(width, 64)})"
            case Operation(op, operands) if op in self.NARROW:
                return self.NARROW[op](self, operands, bits)
            case Operation(op, _):
                raise self.refuse(f"operator {op}")
        found = self.field(expression)
        if found is None:
            raise self.refuse(f"{type(expression).__name__} as a number")
        return self._load(*found, bits)

    def _load(self, ref: HeaderRef, field: Field, bits: int) -> str:
        member = ref.field(field) + ("[0]" if field.width > 64 else "")
        readable = self.condition(ref)
        value = f"(uint64_t){member}" if readable == "1" else f"({readable} ? (uint64_t){member} : 0)"
        if field.signed and field.width < 64 and bits > field.width:
            return f"sign_extend({value}, {field.width})"
        return value

    def masked(self, expression: Expression, width: int) -> str:
        """Return `narrow`, cut to `width` bits."""
        if within(self.ranges.of(expression), Bounds(0, mask_of(width))):
            return self.narrow(expression)
        value = self.narrow(expression, width)
        return value if width == 64 else f"({value} & {literal(mask_of(width))})"

    def exact(self, expression: Expression) -> tuple[str, bool] | None:
        """Return (C text, signed) of a value that fits 64 bits exactly; None when it may not."""
        bounds = self.ranges.of(expression)
        if within(bounds, WORD):
            return self.narrow(expression), False
        if within(bounds, SIGNED_WORD):
            return self.narrow(expression), True
        return None

    def exact_amount(self, expression: Expression) -> str:
        """Return a shift amount or index, where values beyond 64 bits become the largest number."""
        found = self.exact(expression)
        if found is not None:
            return f"({found[0]})"
        count = self.limbs_for(expression)
        return f"wide_amount({self.wide(expression, 64 * count)}, {count})"

    # More than 64 bits

    def limbs_for(self, *expressions: Expression) -> int:
        """Return the number of limbs that hold each value exactly, in two's complement if one can be negative."""
        bounds = [self.ranges.of(expression) for expression in expressions]
        hull = Bounds(0, 0)
        for operand_bounds in bounds:
            if operand_bounds is None:
                raise self.refuse("an intermediate result of unlimited size")
            hull = hull.hull(operand_bounds)
        count = max(1, limbs(hull.bits()))
        if count > LIMBS_MAX:
            raise self.refuse(f"an intermediate result of {hull.bits()} bits")
        return count

    def negative(self, expression: Expression) -> bool:
        """Return whether the value may be negative."""
        bounds = self.ranges.of(expression)
        return bounds is None or not bounds.unsigned

    def temporary(self, count: int) -> str:
        """Return a new array of limbs."""
        name = self.block.name("w")
        self.block.add(f"uint64_t {name}[{count}];")
        return name

    def wide(self, expression: Expression, bits: int) -> str:
        """Return a pointer to limbs(bits) limbs that equal `expression` modulo 2^bits."""
        count = limbs(bits)
        direct = self.pointer(expression, count)
        if direct is not None:
            return direct
        name = self.temporary(count)
        self.store(name, expression, bits)
        return name

    def pointer(self, expression: Expression, count: int) -> str | None:
        """Return a pointer to `count` existing limbs, None when they have to be computed."""
        match expression:
            case Constant(value):
                return self.block.unit.constant(tuple(value >> 64 * i & mask_of(64) for i in range(count)))
            case Argument(index):
                width = self.ranges.parameters[index].width
                return self.argument(index) if limbs(width) >= count else None
        found = self.field(expression)
        if found is None:
            return None
        ref, field = found
        partial = field.signed and field.width % 64 and limbs(field.width) == count
        if field.width <= 64 or limbs(field.width) < count or partial:
            return None
        return self.readable(ref, field)

    def store(self, to: str, expression: Expression, bits: int) -> None:
        """Write statements that compute limbs(bits) limbs at the pointer `to`."""
        count = limbs(bits)
        direct = self.pointer(expression, count)
        if direct is not None:
            self.block.add(f"wide_copy({to}, {direct}, {count});")
        elif isinstance(expression, Operation) and expression.op in self.WIDE:
            self.WIDE[expression.op](self, to, expression.operands, bits)
        else:
            self._extend(to, expression, count)

    def _extend(self, to: str, expression: Expression, count: int) -> None:
        """Write statements that extend a value of fewer limbs, or of up to 64 bits, to `count` limbs at the pointer
        `to`."""
        if isinstance(expression, Lookahead):
            self.block.add(
                f"wide_extend({to}, {count}, wide_zero, 0, 0);",
                f"load_wide({to}, D->packet, (uint64_t)D->at * 8 + {expression.offset}, {expression.width});",
            )
            return
        width = self.ranges.of(expression)
        own = 1 if width is None else max(1, limbs(width.bits()))
        negative = self.negative(expression)
        name = self.temporary(max(own, 1))
        source = self.pointer(expression, own) if own > 1 else None
        if source is not None:
            self.block.add(f"wide_copy({name}, {source}, {own});")
        elif own > 1:
            self._wide_signed(name, expression, own)
        else:
            self.block.add(f"{name}[0] = {self.narrow(expression)};")
        sign = f"(int64_t){name}[{own - 1}] < 0" if negative else "0"
        self.block.add(f"wide_extend({to}, {count}, {name}, {own}, {sign});")

    def _wide_signed(self, name: str, expression: Expression, own: int) -> None:
        found = self.field(expression)
        if found is None:
            raise self.refuse(f"{expression} as a wide number")
        ref, field = found
        source = self.readable(ref, field)
        self.block.add(f"wide_copy({name}, {source}, {own});", f"wide_sign_extend({name}, {own}, {field.width});")

    # Conditions

    def is_truth(self, expression: Expression) -> bool:
        """Return whether the expression is Boolean."""
        match expression:
            case Truth():
                return True
            case Operation("?", (_, then, _)):
                return self.is_truth(then)
            case Operation(op, _):
                return op in self.TRUTH
            case _:
                return False

    def truth(self, expression: Expression) -> str:
        """Return a C condition, 0 or 1."""
        match expression:
            case Truth(value):
                return str(int(value))
            case Operation("?", (condition, then, otherwise)):
                return f"({self.truth(condition)} ? {self.truth(then)} : {self.truth(otherwise)})"
            case Operation(op, operands) if op in self.TRUTH:
                return self.TRUTH[op](self, op, operands)
        raise self.refuse(f"{word_of(expression)} as a condition")

    # Assignments

    def assign(self, target: Expression, value: Expression) -> None:
        """Assign `target = value`, cut to the target's width."""
        found = self.field(target)
        if found is None:
            raise self.refuse(f"an assignment to {word_of(target)}")
        ref, field = found
        if field.width <= 64:
            number = f"(uint64_t){self.truth(value)}" if self.is_truth(value) else self.masked(value, field.width)
            self.block.add(f"{ref.field(field)} = {number};")
            return
        self.store_cut(ref.field(field), value, field.width)

    def set(self, target: Expression, text: str) -> None:
        """Set `target` to the C expression of a uint64_t, cut to the target's width."""
        found = self.field(target)
        if found is None:
            raise self.refuse(f"{target} as a target")
        member, width = found[0].field(found[1]), found[1].width
        if width > 64:
            self.block.add(f"wide_copy({member}, wide_zero, {limbs(width)});", f"{member}[0] = {text};")
        else:
            self.block.add(f"{member} = {text} & {literal(mask_of(width))};")

    def set_wide(self, target: Expression, pointer: str, width: int) -> None:
        """Set `target` to the unsigned number of `width` bits in limbs at a C pointer, cut to the target's width."""
        found = self.field(target)
        if found is None or found[1].width <= 64:
            self.set(target, f"({pointer})[0]")
            return
        member, own = found[0].field(found[1]), found[1].width
        if own == width:
            self.block.add(f"wide_copy({member}, {pointer}, {limbs(width)});")
            return
        self.block.add(f"wide_extend({member}, {limbs(own)}, {pointer}, {limbs(width)}, 0);")
        if own % 64:
            self.block.add(f"{member}[{limbs(own) - 1}] &= {literal(mask_of(own % 64))};")

    def store_cut(self, to: str, value: Expression, width: int) -> None:
        """Store a value as `store` does, and set the bits above `width` to 0."""
        self.store(to, value, width)
        if width % 64:
            self.block.add(f"{to}[{limbs(width) - 1}] &= {literal(mask_of(width % 64))};")
