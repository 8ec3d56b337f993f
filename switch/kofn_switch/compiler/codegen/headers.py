"""Statements on whole headers, stacks and unions, as BMv2 executes them.

Making a header valid makes the other headers of its union invalid. Pushing and popping exchange elements; in a stack of
unions the elements that enter at an end are not made invalid.
"""

from collections.abc import Iterator

from kofn_switch.compiler.codegen.layout import HeaderRef
from kofn_switch.compiler.codegen.lowering import Lowering
from kofn_switch.compiler.ir.expressions import Expression, HeaderOf, StackOf, UnionOf, UnionStackOf

Arguments = tuple[Expression, ...]


def add_header(low: Lowering, arguments: Arguments) -> None:
    """Make a header valid. A header that was invalid starts as zeros; its variable field keeps its length."""
    header = low.header(arguments[0])
    kept = header.type.variable is not None
    with low.block.braces(f"if (!{header.valid})"):
        low.block.add(*([f"const uint32_t bits = {header.bits};"] if kept else []))
        low.block.add(f"memset(&{header.struct}, 0, sizeof {header.struct});")
        low.block.add(*([f"{header.bits} = bits;"] if kept else []))
        low.block.add(*header.make_valid(), f"D->size += {header.bytes};")
    _protect(low, arguments[0], header)


def remove_header(low: Lowering, arguments: Arguments) -> None:
    header = low.header(arguments[0])
    with low.block.braces(f"if ({header.valid})"):
        low.block.add(f"{header.valid} = 0;", f"D->size -= {header.bytes};")


def _protect(low: Lowering, expression: Expression, header: HeaderRef) -> None:
    """Keep the stack's last element, which stands for an index out of range, invalid."""
    if not isinstance(expression, HeaderOf):
        stack = getattr(expression, "stack", "")
        low.block.add(f"{low.layout.element(stack, str(low.layout.depth(stack))).valid} = 0;")


def assign_header(low: Lowering, arguments: Arguments) -> None:
    """Copy a valid header; an invalid one only makes the target invalid."""
    target, source = (low.header(argument) for argument in arguments)
    with low.block.braces(f"if ({source.valid})"):
        low.block.add(f"{target.struct} = {source.struct};")
        low.block.add(*(f"{rival} = 0;" for rival in target.rivals))
    if not target.always:
        low.block.add(f"{target.valid} = {source.valid};")
        _protect(low, arguments[0], target)


def assign_union(low: Lowering, arguments: Arguments) -> None:
    target, source = (_union_members(low, argument) for argument in arguments)
    for one, other in zip(target, source, strict=True):
        assign_header(low, (HeaderOf(one), HeaderOf(other)))


def _union_members(low: Lowering, expression: Expression) -> list[str]:
    if not isinstance(expression, UnionOf):
        raise low.refuse(f"{type(expression).__name__} as a header union")
    return list(low.layout.program.unions[expression.union].members.values())


def assign_stack(low: Lowering, arguments: Arguments) -> None:
    """Copy all headers and the next index, also for a stack of unions."""
    (target, rows), (source, others) = (_stack(low, argument) for argument in arguments)
    with low.block.braces(f"for (unsigned i = 0; i < {low.layout.depth(target)}; i++)"):
        for row, other in zip(rows, others, strict=True):
            to, origin = low.layout.element(row, "i"), low.layout.element(other, "i")
            low.block.add(f"if ({origin.valid}) {to.struct} = {origin.struct};", f"{to.valid} = {origin.valid};")
    low.block.add(f"{low.layout.next_index(target)} = {low.layout.next_index(source)};")


def _stack(low: Lowering, expression: Expression) -> tuple[str, list[str]]:
    """Return the name of a stack and the rows of headers that make it up."""
    match expression:
        case StackOf(stack):
            return stack, [stack]
        case UnionStackOf(stack):
            return stack, low.layout.columns(low.layout.program.union_stacks[stack])
        case _:
            raise low.refuse(f"{type(expression).__name__} as a header stack")


def push(low: Lowering, arguments: Arguments) -> None:
    """Make room for the given number of elements in front."""
    stack, rows = _stack(low, arguments[0])
    depth, following, n = low.layout.depth(stack), low.layout.next_index(stack), _count(low, stack, arguments[1])
    low.block.add(f"{following} = {following} + {n} < {depth} ? (uint32_t)({following} + {n}) : {depth};")
    with low.block.braces(f"for (uint64_t i = {depth}; {n} && i-- > {n};)"):
        low.block.add(*_exchange(low, rows, "i", f"i - {n}"))
    _invalidate(low, arguments[0], "0", n)


def pop(low: Lowering, arguments: Arguments) -> None:
    """Remove the given number of elements from the front."""
    stack, rows = _stack(low, arguments[0])
    depth, following, n = low.layout.depth(stack), low.layout.next_index(stack), _count(low, stack, arguments[1])
    low.block.add(f"{following} = {following} > {n} ? (uint32_t)({following} - {n}) : 0;")
    with low.block.braces(f"for (uint64_t i = 0; {n} && i < {depth} - {n}; i++)"):
        low.block.add(*_exchange(low, rows, "i", f"i + {n}"))
    _invalidate(low, arguments[0], f"{depth} - {n}", n)


def _count(low: Lowering, stack: str, amount: Expression) -> str:
    name, by, depth = low.block.name("n"), low.exact_amount(amount), low.layout.depth(stack)
    low.block.add(f"const uint64_t {name} = {by} < {depth} ? {by} : {depth};")
    return name


def _exchange(low: Lowering, rows: list[str], one: str, other: str) -> Iterator[str]:
    for row in rows:
        a, b = low.layout.element(row, one), low.layout.element(row, other)
        for x, y in ((a.struct, b.struct), (a.valid, b.valid)):
            yield f"{{ __typeof__({x}) t = {x}; {x} = {y}; {y} = t; }}"


def _invalidate(low: Lowering, stack: Expression, first: str, count: str) -> None:
    if isinstance(stack, StackOf):
        low.block.add(f"memset(&{low.layout.element(stack.stack, first).valid}, 0, {count});")
