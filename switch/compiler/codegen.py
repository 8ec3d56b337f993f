"""A program as one C file against `runtime/program.h`: types, parser, actions, pipelines, and `process` around them."""

from switch.compiler.block import Unit
from switch.compiler.layout import Layout, c_type, limbs
from switch.compiler.matching import is_call, shape
from switch.compiler.parsing import ParserWriter, header_writers
from switch.compiler.pipelines import PipelineWriter, check_nodes, used_actions, write_action
from switch.compiler.process import ProcessWriter
from switch.compiler.program import Program

INCLUDES = ("program.h", "table.h", "wide.h", "bits.h", "hash.h", "value_set.h")


def generate(program: Program) -> str:
    """The C text.  Raises ProgramError for what is not executed, naming it and its place in the P4 source."""
    layout, unit = Layout(program), Unit()
    for pipeline in (program.ingress, program.egress):
        check_nodes(pipeline)
    functions = ParserWriter(layout, unit).write() + header_writers(layout)
    for action in used_actions(program):
        functions += write_action(layout, unit, action)
    for pipeline in (program.ingress, program.egress):
        functions += PipelineWriter(layout, unit, pipeline).write()
    functions += ProcessWriter(layout, unit).write()
    lines = [
        "#include <stddef.h>",
        *[f'#include "{name}"' for name in INCLUDES],
        *layout.declarations(),
        *unit.helpers(),
        *functions,
        *_descriptor(program),
    ]
    return "\n".join(lines) + "\n"


def _descriptor(program: Program) -> list[str]:
    """The object by which the runtime knows the program."""
    tables = [shape(table) for table in program.tables if not is_call(table)]
    registers = [f"{{{_cell_bytes(array.width)}, {array.size}}}" for array in program.registers]
    counters = [str(array.size) for array in program.counters]
    value_sets = [str(max(1, limbs(values.width))) for values in program.value_sets.values()]
    return [
        f"static const struct table_shape tables[] = {{{', '.join(tables or ['{0}'])}}};",
        f"static const struct register_shape registers[] = {{{', '.join(registers or ['{0}'])}}};",
        f"static const uint32_t counters[] = {{{', '.join(counters or ['0'])}}};",
        f"static const uint32_t value_set_limbs[] = {{{', '.join(value_sets or ['0'])}}};",
        "const struct program kofn_program = {",
        f"    {len(tables)}, {len(registers)}, {len(counters)}, tables, registers, counters,",
        "    sizeof(struct state), process,",
        f"    {len(value_sets)}, value_set_limbs,",
        "};",
    ]


def _cell_bytes(width: int) -> int:
    return int(c_type(width)[4:-2]) // 8 if width <= 64 else 8 * limbs(width)
