"""Clones, resubmitted and recirculated packets: the program's part of runtime/copies.h, which has the rules."""

from kofn_switch.compiler.codegen import tracing
from kofn_switch.compiler.codegen.layout import META, Layout, identifier
from kofn_switch.compiler.codegen.lowering import Lowering
from kofn_switch.compiler.ir.expressions import Constant, Expression, FieldOf
from kofn_switch.compiler.ir.program import FieldList


def function(head: str, body: list[str]) -> list[str]:
    return [f"static {head} {{", *[f"    {line}" for line in body], "}"]


class CopyWriter:
    """Writes the functions that copies need."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._program = layout.program

    def write(self) -> list[str]:
        """Return functions that go after the deparser, with those that run for each packet."""
        return ['#include "copies.h"', *self._keep(), *self._anew(), *self._enter(), *self._take_over()]

    def _metadata(self) -> list[str]:
        """Return the members of `struct state` that hold metadata."""
        names = [name for name, header in self._program.headers.items() if header.metadata]
        return [self._layout.header(name).struct.removeprefix("D->") for name in names]

    def _keep(self) -> list[str]:
        """Write the function that sets the metadata of a copy `C` of `D`."""
        cases = [line for fields in self._program.field_lists.values() for line in self._case(fields)]
        return function(
            "void keep(struct state *C, const struct state *D, uint32_t list, enum instance_type type)",
            [
                *[f"memset(&C->{member}, 0, sizeof C->{member});" for member in self._metadata()],
                "(void)D;",
                "switch (list) {",
                *cases,
                "}",
                *self._layout.set_meta("instance_type", "type", "C"),
            ],
        )

    def _case(self, fields: FieldList) -> list[str]:
        members = [self._member(field) for field in fields.fields]
        copies = [f"    memcpy(&C->{member}, &D->{member}, sizeof C->{member});" for member in members]
        return [f"case {fields.id}:", *copies, "    break;"]

    def _member(self, field: FieldOf) -> str:
        ref = self._layout.header(field.header)
        return ref.field(ref.type.field(field.field)).removeprefix("D->")

    def _anew(self) -> list[str]:
        """Write the function that prepares a state for the parser: no header valid, and zeros in everything that may be
        read."""
        rows = [identifier(row) for row in self._layout.kept_rows()]
        single = [name for name in sorted(self._layout.kept) if self._layout.in_stack(name) is None]
        members = [*self._metadata(), *(identifier(name) for name in single), *rows]
        clear = [f"memset(&D->{member}, 0, sizeof D->{member});" for member in members]
        head = "void anew(struct state *D, const uint8_t *packet, uint32_t length)"
        return function(
            head, ["D->packet = packet; D->length = length; D->size = length;", *clean(self._layout), *clear]
        )

    def _take_over(self) -> list[str]:
        """Write the function that hands metadata on to a packet that is parsed again."""
        taken = [f"D->{member} = from->{member};" for member in self._metadata()]
        head = "void take_over(struct state *D, const struct state *from)"
        length = self._layout.set_meta("packet_length", "D->length")
        return function(head, [*taken, *length, *tracing.again(self._layout)])

    def _enter(self) -> list[str]:
        """Write the function that sets the metadata that the parser reads when it parses a clone of ingress."""
        return function("void enter(struct state *D)", ["(void)D;", *self._layout.set_meta("ingress_port", "D->port")])


def clean(layout: Layout) -> list[str]:
    """Return statements that set everything but metadata to the state of a new packet."""
    lines = [f"memset(D->{member}, 0, sizeof D->{member});" for member in ("valid", "summed", "next")]
    lines += [
        f"memset(&D->{META}_, 0, sizeof D->{META}_);",
        "D->at = 0; D->exit = 0; D->learn = 0; D->truncate = UINT32_MAX; D->tail = NULL;",
    ]
    variable = [name for name, header in layout.program.headers.items() if header.type.variable]
    lines += [f"{layout.header(name).bits} = 0;" for name in variable]  # 0 until the field is extracted or assigned
    return [*lines, "D->clone = 0; D->resubmit = 0; D->recirculate = 0;"] if layout.copies else lines


def emit_clone(low: Lowering, arguments: tuple[Expression, ...]) -> None:
    """Note a clone, which is made at the end of the pipeline; a later call replaces an earlier one."""
    session, fields = arguments
    low.block.add(f"D->clone = ((uint32_t){low.narrow(session, 16)} & SESSION_MAX) | SESSION_SET;")
    low.block.add(f"D->clone_list = {_list(low, fields)};")


def emit_resubmit(low: Lowering, arguments: tuple[Expression, ...]) -> None:
    """Note a resubmission, which happens at the end of ingress."""
    low.block.add(f"D->resubmit = {_list(low, arguments[0])};")


def emit_recirculate(low: Lowering, arguments: tuple[Expression, ...]) -> None:
    low.block.add(f"D->recirculate = {_list(low, arguments[0])};")


def _list(low: Lowering, expression: Expression) -> int:
    """Return the number of a field list."""
    if isinstance(expression, Constant) and expression.value in low.layout.program.field_lists:
        return expression.value
    raise low.refuse(f"{expression} as a field list")
