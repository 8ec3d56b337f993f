"""Limb-by-limb expressions as one loop: no temporaries between the operators, a carry for each addition."""

from collections.abc import Callable
from typing import ClassVar

from switch.compiler.layout import limbs, literal, mask_of
from switch.compiler.lowering import Lowering
from switch.compiler.program import Constant, Expression, Operation


class Kernel:
    """Builds the loop for one expression, right modulo 2^bits."""

    OPERATORS: ClassVar[frozenset[str]] = frozenset({"&", "|", "^", "~", "+", "-"})

    def __init__(self, lowering: Lowering, bits: int) -> None:
        """Operands that are no such trees are computed into arrays first, through `lowering`."""
        self._lowering = lowering
        self._bits = bits
        self._pointers: dict[str, str] = {}
        self._carries: list[int] = []
        self._body: list[str] = []
        self._rules: dict[str, Callable[[tuple[Expression, ...]], str]] = {
            "&": self._and,
            "|": lambda operands: self._infix("|", operands),
            "^": lambda operands: self._infix("^", operands),
            "~": lambda operands: f"~{self._limb(operands[0])}",
            "+": lambda operands: self._add(self._limb(operands[0]), self._limb(operands[1]), 0),
            "-": self._subtract,
        }

    def emit(self, to: str, expression: Expression) -> None:
        """A call that leaves the limbs at the pointer `to`."""
        result = self._limb(expression)
        count = limbs(self._bits)
        names = "".join(f", const uint64_t *{name}" for name in self._pointers.values())
        carries = "".join(f"uint8_t c{number} = {start}; " for number, start in enumerate(self._carries))
        pragma = '_Pragma("GCC unroll 32")' if self._carries else '_Pragma("GCC ivdep")'
        # Operands and result are the same object or apart, so no iteration depends on another but by the carries.
        body = " ".join([*self._body, f"to[i] = {result};"])
        text = f"{{ {carries}{pragma} for (unsigned i = 0; i < {count}; i++) {{ {body} }} }}"
        name = self._lowering.block.unit.kernel(f"(uint64_t *to{names})", text)
        self._lowering.block.add(f"{name}({', '.join([to, *self._pointers])});")

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
        """A mask that keeps all bits that are asked for is left out: p4c puts one around every operation."""
        left, right = operands
        if isinstance(right, Constant) and right.value & mask_of(self._bits) == mask_of(self._bits):
            return self._limb(left)
        return self._infix("&", operands)

    def _subtract(self, operands: tuple[Expression, ...]) -> str:
        left, right = operands if len(operands) == 2 else (Constant(0), operands[0])
        return self._add(self._limb(left), f"~{self._limb(right)}", 1)

    def _add(self, left: str, right: str, start: int) -> str:
        number = len(self._carries)
        self._carries.append(start)
        self._body.append(f"uint64_t s{number}; c{number} = add_carry(c{number}, {left}, {right}, &s{number});")
        return f"s{number}"
