"""Digests in C: the lists of values that a program sends to the control plane."""

from kofn_switch.compiler.codegen.block import Block, CodeUnit
from kofn_switch.compiler.codegen.layout import Layout, limbs
from kofn_switch.compiler.codegen.lowering import Lowering
from kofn_switch.compiler.codegen.operators import Translator
from kofn_switch.compiler.codegen.parsing import NOWHERE
from kofn_switch.compiler.ir.expressions import Expression
from kofn_switch.compiler.ir.program import LearnList


def learn(layout: Layout, unit: CodeUnit) -> list[str]:
    """Return the function that sends a packet's digest."""
    block = Block(unit)
    block.add("(void)D;")
    for number, digest in enumerate(layout.program.digests):
        with block.braces(f"if (D->learn == {digest.id})"):
            _digest(Translator(layout, block, place=NOWHERE), number, digest)
    return ["static void learn(struct state *D) {", *block.lines, "}"]


def _digest(low: Lowering, number: int, digest: LearnList) -> None:
    count, at = sum(limbs(width) for width in digest.widths), 0
    low.block.add(f"uint64_t fields[{max(count, 1)}];")
    for element, width in zip(digest.elements, digest.widths, strict=True):
        _digest_field(low, element, width, at)
        at += limbs(width)
    low.block.add(f"services(D->core)->digest(D->core, {number}, fields, {count});")


def _digest_field(low: Lowering, element: Expression, width: int, at: int) -> None:
    if width > 64:
        low.store_cut(f"(fields + {at})", element, width)
    else:
        low.block.add(f"fields[{at}] = {low.masked(element, width)};")
