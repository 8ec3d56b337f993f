"""Writes an expression that works limb by limb as one loop. There are no temporaries between the operators, and each
addition has a carry.

Carries keep a compiler from vectorising the loop. Additions of lanes never carry out of a limb, because the top bit of
every lane, and so of every limb, is masked off. With enough limbs, a first loop therefore looks for a sum of two limbs
that overflows. If there is none, a second loop adds without carries.
"""

from collections.abc import Callable
from typing import ClassVar

from kofn_switch.compiler.codegen.layout import limbs, literal, mask_of
from kofn_switch.compiler.codegen.lowering import Lowering
from kofn_switch.compiler.ir.expressions import Constant, Expression, Operation

SIDE_BY_SIDE = 8
"""From this number of limbs on, the search for an overflow costs less than additions with carries."""
UNROLLED = '_Pragma("GCC unroll 4")'
"""Unrolls the loop over the four vectors of a packet's word, which takes twice as long if it is not unrolled."""
INDEPENDENT = f'_Pragma("GCC ivdep") {UNROLLED}'


class LimbLoop:
    """Builds the loop for one expression, correct modulo 2^bits."""

    OPERATORS: ClassVar[frozenset[str]] = frozenset({"&", "|", "^", "~", "+", "-"})

    def __init__(self, lowering: Lowering, bits: int) -> None:
        """Take `lowering`. It computes each operand that cannot be computed limb by limb, and stores the operand in an
        array before the loop."""
        self._lowering = lowering
        self._bits = bits
        self._pointers: dict[str, str] = {}
        self._sums: list[tuple[str, str, int]] = []  # two C expressions of a limb, and the first carry
        self._rules: dict[str, Callable[[tuple[Expression, ...]], str]] = {
            "&": self._and,
            "|": lambda operands: self._infix("|", operands),
            "^": lambda operands: self._infix("^", operands),
            "~": lambda operands: f"~{self._limb(operands[0])}",
            "+": lambda operands: self._add(self._limb(operands[0]), self._limb(operands[1]), 0),
            "-": self._subtract,
        }

    def emit(self, to: str, expression: Expression) -> None:
        """Write a call that leaves the result's limbs at the pointer `to`."""
        result = self._limb(expression)
        count = limbs(self._bits)
        names = "".join(f", const uint64_t *{name}" for name in self._pointers.values())
        loop = f"for (unsigned i = 0; i < {count}; i++)"
        text = f"{self._without_carries(loop, count, result)}{self._with_carries(loop, result)}"
        name = self._lowering.block.unit.kernel(f"(uint64_t *to{names})", f"{{ {text}}}")
        self._lowering.block.add(f"{name}({', '.join([to, *self._pointers])});")

    # An operand and the result are the same array or do not overlap, so iterations depend on each other only by
    # carries.

    def _with_carries(self, loop: str, result: str) -> str:
        carries = "".join(f"uint8_t c{number} = {start}; " for number, (_, _, start) in enumerate(self._sums))
        pragma = '_Pragma("GCC unroll 32")' if self._sums else INDEPENDENT
        sums = "".join(
            f"uint64_t s{number}; c{number} = add_carry(c{number}, {left}, {right}, &s{number}); "
            for number, (left, right, _) in enumerate(self._sums)
        )
        return f"{carries}{pragma} {loop} {{ {sums}to[i] = {result}; }} "

    def _without_carries(self, loop: str, count: int, result: str) -> str:
        """Return the two loops without carries; "" if they do not pay: for few limbs, or if an addition begins with a
        carry."""
        if count < SIDE_BY_SIDE or not self._sums or any(start for _, _, start in self._sums):
            return ""
        sums = [f"const uint64_t s{number} = {left} + {right}; " for number, (left, right, _) in enumerate(self._sums)]
        found = "".join(f"{text}over |= s{number} < {self._sums[number][0]}; " for number, text in enumerate(sums))
        add = f"{{ {''.join(sums)}to[i] = {result}; }}"
        return f"uint64_t over = 0; {UNROLLED} {loop} {{ {found}}} if (!over) {{ {INDEPENDENT} {loop} {add} return; }} "

    def _limb(self, expression: Expression) -> str:
        if isinstance(expression, Constant):
            return self._constant(expression)
        if isinstance(expression, Operation) and expression.op in self._rules:
            return f"({self._rules[expression.op](expression.operands)})"
        pointer = self._lowering.wide(expression, self._bits)
        return f"{self._pointers.setdefault(pointer, f'a{len(self._pointers)}')}[i]"

    def _constant(self, constant: Constant) -> str:
        words = {constant.value >> 64 * i & mask_of(64) for i in range(limbs(self._bits))}
        if len(words) == 1:
            return literal(words.pop())
        pointer = self._lowering.wide(constant, self._bits)
        return f"{self._pointers.setdefault(pointer, f'a{len(self._pointers)}')}[i]"

    def _infix(self, sign: str, operands: tuple[Expression, ...]) -> str:
        return f"{self._limb(operands[0])} {sign} {self._limb(operands[1])}"

    def _and(self, operands: tuple[Expression, ...]) -> str:
        """Omit a mask that keeps all requested bits: p4c puts one around every operation."""
        left, right = operands
        if isinstance(right, Constant) and right.value & mask_of(self._bits) == mask_of(self._bits):
            return self._limb(left)
        return self._infix("&", operands)

    def _subtract(self, operands: tuple[Expression, ...]) -> str:
        left, right = operands if len(operands) == 2 else (Constant(0), operands[0])
        return self._add(self._limb(left), f"~{self._limb(right)}", 1)

    def _add(self, left: str, right: str, start: int) -> str:
        self._sums.append((left, right, start))
        return f"s{len(self._sums) - 1}"
