"""Random expressions in p4c's forms: a result that could overflow is cut to its width at once.

A field of an invalid header reads as zero, since its value is undefined.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import TypeVar

from tests.switch.build import Tree, const, op
from tests.switch.build import field as field_of

T = TypeVar("T")
WIDTHS = (1, 2, 3, 7, 8, 9, 13, 16, 17, 31, 32, 33, 48, 63, 64, 65, 96, 127, 128, 129, 200, 256)
WIDER = (*WIDTHS, 512, 1000, 2048)
DEPTH = 3


@dataclass(frozen=True, slots=True)
class Leaf:
    """A readable value: its tree, its width and whether it is signed."""

    tree: Tree
    width: int
    signed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Readable:
    """The values that expressions may read: leaves, and headers that may be valid or not.

    The elements of `stack` are also read at computed places, by their field `element`, while all are valid.
    """

    random: Random
    leaves: Sequence[Leaf]
    headers: Sequence[str] = ()
    equal: Sequence[tuple[str, str]] = ()  # headers of one type
    unions: Sequence[str] = ()
    stack: Sequence[str] = ()
    element: Leaf | None = None

    def choose(self, options: Sequence[T]) -> T:
        """Return one of several options."""
        return self.random.choice(options)

    def number(self, low: int, high: int) -> int:
        """Return a number between both bounds."""
        return self.random.randint(low, high)


def guarded(header: str, name: str) -> Tree:
    """Return a header's field, zero if the header is invalid."""
    return op("?", valid(header), field_of(header, name), const(0))


def valid(header: str) -> Tree:
    """Return whether a header is valid."""
    return op("d2b", field_of(header, "$valid$"))


def cut(tree: Tree, width: int) -> Tree:
    """Return the lowest bits."""
    return op("&", tree, const((1 << width) - 1))


def sign(tree: Tree, width: int) -> Tree:
    """Return the lowest bits as a signed number."""
    return op("two_comp_mod", tree, signed_const(width))


def signed_const(value: int) -> Tree:
    """Return a constant that may be negative, as p4c writes it."""
    return {"type": "hexstr", "value": hex(value)}


def bits(source: Readable, width: int, depth: int = DEPTH) -> Tree:
    """Return an unsigned number of `width` bits."""
    if depth == 0 or source.number(0, 3) == 0:
        return _unsigned_leaf(source, width)
    rule = source.choose(UNSIGNED)
    return rule(source, width, depth - 1)


def _unsigned_leaf(source: Readable, width: int) -> Tree:
    if not source.leaves or source.number(0, 3) == 0:
        return const(_value(source, width))
    leaf: Leaf = source.choose(source.leaves)
    if leaf.width > width:
        low = source.number(0, leaf.width - width)
        return cut(op(">>", leaf.tree, const(low)), width)
    return cut(leaf.tree, width) if leaf.signed else leaf.tree


def element(source: Readable, place: int) -> Tree:
    """Return a field of the stack's header at a computed place, by the field's number."""
    stack = {"type": "header_stack", "value": source.stack[0].partition("[")[0]}
    index = op("%", bits(source, 4, 1), const(len(source.stack)))
    header = op("dereference_header_stack", stack, index)
    return {"type": "expression", "value": {"op": "access_field", "left": header, "right": place}}


def _value(source: Readable, width: int) -> int:
    ones = (1 << width) - 1
    corners = (0, 1, ones, ones >> 1, (ones >> 1) + 1, ones - 1)
    kind = source.number(0, len(corners))
    return source.number(0, ones) if kind == len(corners) else corners[kind] & ones


def _ring(name: str) -> Callable[[Readable, int, int], Tree]:
    return lambda source, width, depth: cut(op(name, bits(source, width, depth), bits(source, width, depth)), width)


def _plain(name: str) -> Callable[[Readable, int, int], Tree]:
    return lambda source, width, depth: op(name, bits(source, width, depth), bits(source, width, depth))


def _divide(name: str) -> Callable[[Readable, int, int], Tree]:
    return lambda source, width, depth: op(name, bits(source, width, depth), const(_value(source, width) or 1))


def _complement(source: Readable, width: int, depth: int) -> Tree:
    return cut(op("~", bits(source, width, depth)), width)


def _negative(source: Readable, width: int, depth: int) -> Tree:
    return cut(op("-", const(0), bits(source, width, depth)), width)


def _by(source: Readable, width: int, depth: int) -> Tree:
    return const(source.number(0, width + 3)) if source.number(0, 1) else bits(source, min(width, 8), depth)


def _left(source: Readable, width: int, depth: int) -> Tree:
    return cut(op("<<", bits(source, width, depth), _by(source, width, depth)), width)


def _right(source: Readable, width: int, depth: int) -> Tree:
    return op(">>", bits(source, width, depth), _by(source, width, depth))


def _concatenate(source: Readable, width: int, depth: int) -> Tree:
    if width == 1:
        return bits(source, width, depth)
    low = source.number(1, width - 1)
    high = cut(op("<<", bits(source, width - low, depth), const(low)), width)
    return op("|", high, bits(source, low, depth))


def _choice(source: Readable, width: int, depth: int) -> Tree:
    return op("?", truth(source, depth), bits(source, width, depth), bits(source, width, depth))


def _saturated(name: str) -> Callable[[Readable, int, int], Tree]:
    def rule(source: Readable, width: int, depth: int) -> Tree:
        return op("usat_cast", op(name, bits(source, width, depth), bits(source, width, depth)), const(width))

    return rule


def _unsigned_cast(source: Readable, width: int, depth: int) -> Tree:
    return cut(ints(source, max(2, width), depth), width)


def _from_truth(source: Readable, width: int, depth: int) -> Tree:
    return op("b2d", truth(source, depth))


def _element(source: Readable, width: int, depth: int) -> Tree:
    if source.element is None:
        return _unsigned_leaf(source, width)
    all_valid = valid(source.stack[0])
    for name in source.stack[1:]:
        all_valid = op("and", all_valid, valid(name))
    return cut(op("?", all_valid, element(source, 0), const(0)), width)


UNSIGNED = (
    *(_ring(name) for name in ("+", "-", "*")),
    *(_plain(name) for name in ("&", "|", "^")),
    *(_divide(name) for name in ("/", "%")),
    *(_saturated(name) for name in ("+", "-")),
    *(_complement, _negative, _left, _right, _concatenate, _choice, _unsigned_cast, _from_truth, _element),
)


def ints(source: Readable, width: int, depth: int = DEPTH) -> Tree:
    """Return a signed number of `width` bits, at least two."""
    if depth == 0 or source.number(0, 3) == 0:
        return _signed_leaf(source, width, depth)
    left, right = ints(source, width, depth - 1), ints(source, width, depth - 1)
    by = _by(source, width, depth - 1)
    return source.choose(
        (
            *(sign(op(name, left, right), width) for name in ("+", "-", "*")),
            *(op("sat_cast", op(name, left, right), const(width)) for name in ("+", "-")),
            op(">>", left, by),
            sign(op("<<", left, by), width),
            op("?", truth(source, depth - 1), left, right),
        )
    )


def _signed_leaf(source: Readable, width: int, depth: int) -> Tree:
    same = [leaf for leaf in source.leaves if leaf.signed and leaf.width == width]
    if same and source.number(0, 1):
        leaf: Leaf = source.choose(same)
        return leaf.tree
    if depth and source.number(0, 1):
        return sign(bits(source, width, depth - 1), width)
    value = _value(source, width)
    return signed_const(value - (1 << width) if value >> (width - 1) else value)


def truth(source: Readable, depth: int = DEPTH) -> Tree:
    """Return a condition."""
    if depth == 0 or source.number(0, 4) == 0:
        return _simple_truth(source)
    match source.number(0, 5):
        case 0:
            return op("not", truth(source, depth - 1))
        case 1:
            return op((source.choose(("and", "or"))), truth(source, depth - 1), truth(source, depth - 1))
        case 2:
            return op((source.choose(("==", "!="))), truth(source, depth - 1), truth(source, depth - 1))
    width: int = source.choose(WIDTHS)
    side = ints if source.number(0, 1) and width > 1 else bits
    name = source.choose(("==", "!=", "<", "<=", ">", ">="))
    return op(name, side(source, width, depth - 1), side(source, width, depth - 1))


def _simple_truth(source: Readable) -> Tree:
    if source.headers and source.number(0, 1):
        return valid(source.choose(source.headers))
    if source.equal and source.number(0, 2) == 0:
        left, right = source.choose(source.equal)
        operands = [{"type": "header", "value": name} for name in (left, right)]
        return op((source.choose(("==", "!="))), *operands)
    width: int = source.choose(WIDTHS)
    return op(source.choose(("==", "<")), _unsigned_leaf(source, width), _unsigned_leaf(source, width))
