"""The Internet checksum (RFC 1071) over fields and payload, without copying them into a buffer.

The checksum adds 16-bit words, and adds each carry out of the highest bit to the lowest bit, so 2^16 counts as 1. So a
field need not be cut into words: it is added as one number, rotated left by the number of bits between the field's end
and the end of the last word that has bits of the field. A field of more than 64 bits is added as the sum of its 64-bit
limbs. Fields of invalid headers are left out, and later fields move up. This changes the later fields' rotation only if
the omitted bits are no multiple of 16; then the generated code counts the bits of the valid headers.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from kofn_switch.compiler.codegen.layout import identifier, literal, mask_of
from kofn_switch.compiler.codegen.lowering import Lowering
from kofn_switch.compiler.ir.expressions import Expression, FieldOf
from kofn_switch.compiler.ir.program import Calculation

WORD = 16
LIMB = 64

Input = tuple[Expression, int]
Constant = Callable[[Expression], bool]
"""Whether an expression is the same in all copies of a packet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Adjacent inputs that are valid together; `start` is the bit where they begin when all inputs are valid."""

    valid: str  # C condition
    inputs: tuple[Input, ...]
    start: int

    @property
    def width(self) -> int:
        return sum(width for _, width in self.inputs)


def emit_csum16(low: Lowering, calculation: Calculation, kept: str = "", constant: Constant | None = None) -> str:
    """Return a C expression of the checksum.

    With `kept`, an index into D->sums, inputs that are `constant` are summed once for all copies of a packet.
    """
    groups = list(_groups(low, [part for part in calculation.inputs if part is not None]))
    used = "" if all(group.valid == "1" or group.width % WORD == 0 for group in groups) else low.block.name("used")
    adder = Adder(low, low.block.name("sum"), used)
    once = [] if used or constant is None else [group for group in groups if _worth_keeping(group, constant)]
    adder.add_groups([group for group in groups if group not in once])
    if once:
        _add_once(low, adder, once, kept)
    if None in calculation.inputs:
        adder.add_payload(sum(group.width for group in groups))
    return f"csum_fold({adder.sum})"


def _groups(low: Lowering, inputs: Sequence[Input]) -> Iterator[Group]:
    start = 0
    for valid, members in groupby(inputs, lambda part: validity(low, part[0])):
        group = Group(valid=valid, inputs=tuple(members), start=start)
        start += group.width
        yield group


def validity(low: Lowering, expression: Expression) -> str:
    """Return C that is true where the expression's header is valid."""
    if isinstance(expression, FieldOf) and expression.field != "$valid$":
        return low.layout.header(expression.header).valid
    return "1"


def _worth_keeping(group: Group, constant: Constant) -> bool:
    return all(constant(expression) for expression, _ in group.inputs) and group.width > LIMB


def _add_once(low: Lowering, adder: "Adder", groups: Sequence[Group], kept: str) -> None:
    with low.block.braces(f"if (!D->summed[{kept}])"):
        once = Adder(low, low.block.name("sum"), "")
        once.add_groups(groups)
        low.block.add(f"D->sums[{kept}] = {once.sum};", f"D->summed[{kept}] = 1;")
    low.block.add(f"{adder.sum} = csum_add({adder.sum}, D->sums[{kept}]);")


class Adder:
    """Writes statements that add to the C variable `sum`. `used` is the C variable that counts the bits of the valid
    headers, "" if the code needs no such variable."""

    def __init__(self, low: Lowering, sum_: str, used: str) -> None:
        self.sum = sum_
        self._low, self._used = low, used
        low.block.add(f"uint64_t {sum_} = 0;", *([f"unsigned {used} = 0;"] if used else []))

    def add_groups(self, groups: Sequence[Group]) -> None:
        at = 0
        while at < len(groups):
            run = 1 if self._used else self._run(groups[at:])
            if run > 1:
                self._add_stack(groups[at], run)
            else:
                self._add_group(groups[at])
            at += run

    def add_payload(self, bits: int) -> None:
        """Add the payload. If all headers are valid, the payload follows `bits` bits of inputs, padded to whole
        bytes."""
        rest = f"csum_bytes(D->packet + D->at, {self._low.layout.payload_bytes})"
        odd = f"({self._used} + 7) / 8 % 2" if self._used else str((bits + 7) // 8 % 2)
        self._add(f"csum_rotate({rest}, 8 * ({odd}))")

    def _add_group(self, group: Group) -> None:
        if group.valid == "1":
            self._add_inputs(group)
        else:
            with self._low.block.braces(f"if ({group.valid})"):
                self._add_inputs(group)

    def _add_inputs(self, group: Group) -> None:
        """Add small inputs by plain additions, as long as their sum cannot overflow 64 bits."""
        at, terms, most = group.start, list[str](), 0
        for expression, width in group.inputs:
            at += width
            term, bound = self._term(expression, width, at, at - group.start)
            if terms and most + bound > mask_of(LIMB):
                self._add(" + ".join(terms))
                terms, most = [], 0
            terms.append(term)
            most += bound
        self._add(" + ".join(terms))
        if self._used:
            self._low.block.add(f"{self._used} += {group.width};")

    def _term(self, expression: Expression, width: int, end: int, offset: int) -> tuple[str, int]:
        """Return the C term of an input, and the largest value that the term can have.

        The input ends before bit `end` if all headers are valid, and before bit `offset` of its group.
        """
        value = self._wide(expression, width) if width > LIMB else f"(uint64_t){self._narrow(expression, width)}"
        if self._used:
            return f"csum_rotate({value}, -({self._used} + {offset}u))", mask_of(LIMB)
        by = -end % WORD
        if by == 0:
            return value, mask_of(min(width, LIMB))
        if width + by <= LIMB:
            return f"({value} << {by})", mask_of(width + by)
        return f"csum_rotate({value}, {by})", mask_of(LIMB)

    def _narrow(self, expression: Expression, width: int) -> str:
        if isinstance(expression, FieldOf) and expression.field != "$valid$":
            return f"{self._low.layout.header(expression.header).struct}.{identifier(expression.field)}"
        return self._low.masked(expression, width)

    def _wide(self, expression: Expression, width: int) -> str:
        if isinstance(expression, FieldOf):
            ref = self._low.layout.header(expression.header)
            return _limbs(f"{ref.struct}.{identifier(expression.field)}", width)
        return _limbs(self._low.wide(expression, width), width)

    def _run(self, groups: Sequence[Group]) -> int:
        """Return the number of groups, from the first one, that are neighbouring elements of one stack; at least 1.

        Each of the elements must be a whole number of words.
        """
        places = [self._place(group) for group in groups]
        count = 0
        while count < len(places) and (place := places[count]) is not None and places[0] is not None:
            if place != (*places[0][:2], places[0][2] + count):
                break
            count += 1
        return max(count, 1)

    def _place(self, group: Group) -> tuple[str, str, int] | None:
        """Return (stack, field, index) of a group that is one wide field of a stack's element."""
        expression, width = group.inputs[0]
        if len(group.inputs) > 1 or width <= LIMB or width % WORD or group.start % WORD:
            return None
        if not isinstance(expression, FieldOf):
            return None
        found = self._low.layout.in_stack(expression.header)
        return None if found is None else (found[0], expression.field, found[1])

    def _add_stack(self, group: Group, count: int) -> None:
        place = self._place(group)
        assert place is not None
        stack, field, first = place
        element, end = self._low.layout.element(stack, "i"), first + count
        if element.type.width % LIMB == 0 and len(element.type.fields) == 1:
            self._add_rows(stack, first, end, group.width // LIMB)
            return
        with self._low.block.braces(f"for (unsigned i = {first}; i < {end}; i++)"):
            text = _limbs(f"{element.struct}.{identifier(field)}", group.width)
            self._low.block.add(f"if ({element.valid}) {self.sum} = csum_add({self.sum}, {text});")

    def _add_rows(self, stack: str, first: int, end: int, limbs: int) -> None:
        """Add elements that consist of limbs alone: valid neighbours are summed as one row."""
        valid = self._low.layout.element(stack, "j").valid
        with self._low.block.braces(f"for (unsigned i = {first}, j; i < {end}; i = j + 1)"):
            row = f"csum_limbs((const uint64_t *)(D->{identifier(stack)} + i), (j - i) * {limbs}, 0)"
            self._low.block.add(f"for (j = i; j < {end} && {valid}; j++) continue;")
            self._add(row)

    def _add(self, text: str) -> None:
        self._low.block.add(f"{self.sum} = csum_add({self.sum}, {text});")


def _limbs(pointer: str, width: int) -> str:
    """Return the sum of a wide value's limbs; the last limb may have bits above the width."""
    return f"csum_limbs({pointer}, {width // LIMB}, {literal(mask_of(width % LIMB))})"
