"""Expressions of every width against Python's integers."""

from collections.abc import Iterator

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from kofn_switch.engine.engine import Engine
from tests.switch.build import Arithmetic, Tree, const, field, op

pytestmark = pytest.mark.slow

WIDTHS = (1, 7, 8, 13, 16, 31, 32, 33, 48, 63, 64, 65, 100, 127, 128, 129, 256, 1000, 2048, 8032)
WITHOUT_CARRIES = int("7fffffffffffffff" * 32, 16)
"""Clears the top bit of each limb, so that sums of limbs do not carry."""
NEAR = settings(max_examples=60, deadline=None)


def cut(tree: Tree, width: int) -> Tree:
    """Cut to a width, as p4c does for every operation that could overflow."""
    return op("&", tree, const((1 << width) - 1))


def operations(width: int) -> Iterator[tuple[int, bool, Tree]]:
    """Yield each operator once, the data plane's lane sum, and p4c's forms of concatenation and slices."""
    a, b, s = field("in", "a"), field("in", "b"), field("in", "s")
    for name in "+-*&|^":
        yield width, False, cut(op(name, a, b), width)
    for name in ("/", "%"):
        yield width, False, op(name, a, b)
    yield width, False, cut(op("~", a), width)
    yield width, False, cut(op("-", const(0), a), width)
    for by in (s, const(0), const(1), const(width // 2), const(width), const(width + 70)):
        yield width, False, cut(op("<<", a, by), width)
        yield width, False, op(">>", a, by)
    for name in ("==", "!=", "<", "<=", ">", ">="):
        yield 1, False, op("b2d", op(name, a, b))
    yield 1, False, op("b2d", op("d2b", op("&", a, b)))
    yield 1, False, op("b2d", op("and", op("<", a, b), op("not", op("==", s, const(0)))))
    yield 1, False, op("b2d", op("or", op("<", a, b), op("==", a, const(0))))
    yield width, False, op("?", op("<", a, b), a, b)
    yield width, False, cut(op("?", op("<", a, b), op("+", a, b), op("~", b)), width)
    keep = cut(op("~", b), width)
    yield width, False, op("^", cut(op("+", op("&", a, keep), op("&", b, keep)), width), op("&", op("^", a, b), b))
    low = max(1, width // 3)
    yield low, False, op("&", op("&", op(">>", a, const(width - low)), const((1 << width) - 1)), const((1 << low) - 1))
    yield min(2 * width, 2048), False, cut(op("|", cut(op("<<", a, const(width)), 2 * width), b), min(2 * width, 2048))
    yield width, False, op("usat_cast", op("+", a, b), const(width))
    yield width, False, op("usat_cast", op("-", a, b), const(width))
    yield 64, False, op("usat_cast", op("-", a, b), const(64))
    yield min(width + 9, 2048), False, op("+", a, b)


def signed_operations(width: int) -> Iterator[tuple[int, bool, Tree]]:
    a, b, s = field("in", "a"), field("in", "b"), field("in", "s")
    for name in "+-*&|^":
        yield width, True, op("two_comp_mod", op(name, a, b), const(width))
    yield width, True, op("two_comp_mod", op("~", a), const(width))
    yield width, True, op("two_comp_mod", op("-", const(0), a), const(width))
    yield width, True, op(">>", a, s)
    yield width, True, op("two_comp_mod", op("<<", a, s), const(width))
    for name in ("==", "!=", "<", "<=", ">", ">="):
        yield 1, False, op("b2d", op(name, a, b))
    yield width, True, op("sat_cast", op("+", a, b), const(width))
    yield width, True, op("sat_cast", op("-", a, b), const(width))
    yield min(width + 70, 2048), True, a
    yield width, True, op("?", op("<", a, const(0)), op("two_comp_mod", op("-", const(0), a), const(width)), a)


def numbers(width: int, signed: bool) -> st.SearchStrategy[int]:
    """Draw any number; bounds and numbers without carries are frequent."""
    low, high = (-(1 << (width - 1)), (1 << (width - 1)) - 1) if signed else (0, (1 << width) - 1)
    corners = [value for value in (0, 1, -1, low, high, high - 1, high >> 1, high >> 1 << 1) if low <= value <= high]
    every = st.integers(low, high)
    half = 1 << (width - 1) if signed else 0
    without_carries = every.map(lambda value: ((value & WITHOUT_CARRIES) + half) % (1 << width) - half)
    return every | st.sampled_from(corners) | without_carries


def check(program: Arithmetic, engine: Engine, values: dict[str, int]) -> None:
    ((port, packet),) = engine.inject(1, program.packet(values))
    assert port == 0
    for number, (got, expected) in enumerate(zip(program.read(packet), program.expected(values), strict=True)):
        assert got == expected, (number, program.results[number], values)


def loaded(program: Arithmetic) -> Engine:
    engine = Engine({})
    engine.load(program.document())
    return engine


@pytest.mark.parametrize("signed", [False, True], ids=["unsigned", "signed"])
@pytest.mark.parametrize("width", WIDTHS)
def test_every_operator_equals_pythons(width: int, signed: bool) -> None:
    if signed and width < 2:
        return  # BMv2 needs two bits for a signed field
    results = list(signed_operations(width) if signed else operations(width))
    program = Arithmetic(inputs=[("a", width, signed), ("b", width, signed), ("s", 12, False)], results=results)
    engine = loaded(program)

    @NEAR
    @given(numbers(width, signed), numbers(width, signed), numbers(12, False) | st.integers(0, min(width, 4095)))
    def run(a: int, b: int, s: int) -> None:
        check(program, engine, {"a": a, "b": b, "s": s})

    run()


WIDE = (40, 64, 130, 2048)


def trees() -> st.SearchStrategy[Tree]:
    """Draw expressions over fields of several widths, cut after each operation as p4c does."""
    leaf = st.sampled_from([field("in", f"f{width}") for width in WIDE]) | st.integers(0, 1 << 70).map(const)

    def grow(inner: st.SearchStrategy[Tree]) -> st.SearchStrategy[Tree]:
        width = st.sampled_from((*WIDE, 17, 65))
        two = st.builds(lambda name, x, y, w: cut(op(name, x, y), w), st.sampled_from("+-*&|^"), inner, inner, width)
        shift = st.builds(
            lambda name, x, by, w: cut(op(name, x, const(by)), w),
            st.sampled_from(("<<", ">>")), inner, st.integers(0, 140), width,
        )  # fmt: skip
        one = st.builds(lambda x, w: cut(op("~", x), w), inner, width)
        compare = st.sampled_from(("<", "<=", "==", "!="))
        choose = st.builds(lambda name, x, y: op("?", op(name, x, y), x, y), compare, inner, inner)
        clamp = st.builds(lambda x, w: op("usat_cast", x, const(w)), inner, width)
        return two | shift | one | choose | clamp

    return st.recursive(leaf, grow, max_leaves=8)


@pytest.mark.slow
# An example is a compilation, so a failing one is shown as found, not shrunk.
@settings(max_examples=10, deadline=None, phases=(Phase.explicit, Phase.reuse, Phase.generate))
@given(st.lists(st.tuples(st.sampled_from(WIDE), trees()), min_size=12, max_size=12), st.data())
def test_nested_expressions_equal_pythons(results: list[tuple[int, Tree]], data: st.DataObject) -> None:
    inputs = [(f"f{width}", width, False) for width in WIDE]
    program = Arithmetic(inputs=inputs, results=[(width, False, tree) for width, tree in results])
    engine = loaded(program)
    for _ in range(5):
        check(program, engine, {name: data.draw(numbers(width, False)) for name, width, _ in inputs})
