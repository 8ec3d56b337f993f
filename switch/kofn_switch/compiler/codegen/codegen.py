"""A program as one C file against `runtime/program.h`: types, parser, actions, pipelines, and `process` around them."""

from kofn_switch.compiler.codegen import tracing
from kofn_switch.compiler.codegen.block import CodeUnit
from kofn_switch.compiler.codegen.indirect import profile_actions
from kofn_switch.compiler.codegen.layout import Layout, c_type, limbs
from kofn_switch.compiler.codegen.matching import is_call, matchers, most_limbs, shape
from kofn_switch.compiler.codegen.parsing import ParserWriter, header_writers
from kofn_switch.compiler.codegen.pipelines import PipelineWriter, check_nodes, used_actions, write_action
from kofn_switch.compiler.codegen.process import ProcessWriter
from kofn_switch.compiler.ir.program import Program, Target
from kofn_switch.compiler.reader.contradictions import contradictions

INCLUDES = ("program.h", "table.h", "wide.h", "bits.h", "hash.h")
METERED = ("meter.h",)
INDIRECT = ("profile.h",)
PARSED = ("value_set.h",)  # value sets


@contradictions()
def generate(program: Program, target: Target | None = None) -> str:
    """Return the C text; `target` holds the differences from v1model's defaults.

    Raises ProgramError, with name and place in the P4 source, for constructs that the switch does not execute.
    """
    layout, unit = Layout(program, target), CodeUnit()
    for pipeline in (program.ingress, program.egress):
        check_nodes(pipeline)
    functions = ParserWriter(layout, unit).write() + header_writers(layout)
    for action in used_actions(program):
        functions += write_action(layout, unit, action)
    functions += matchers(program)
    for pipeline in (program.ingress, program.egress):
        functions += PipelineWriter(layout, unit, pipeline).write()
    process = ProcessWriter(layout, unit)
    functions += process.write() + tracing.entry(layout)
    lines = [
        "#include <stddef.h>",
        *[f'#include "{name}"' for name in _includes(program)],
        *tracing.includes(layout),
        *layout.declarations(),
        *unit.helpers(),
        *functions,
        *_descriptor(layout, queued=process.queued),
    ]
    return "\n".join(lines) + "\n"


def _descriptor(layout: Layout, *, queued: bool) -> list[str]:
    """Define the object by which the runtime knows the program."""
    program = layout.program
    tables = [shape(table) for table in program.tables if not is_call(table)]
    registers = [f"{{{_cell_bytes(array.width)}, {array.size}}}" for array in program.registers]
    counters = [str(array.size) for array in program.counters]
    return [
        f"static const struct table_shape tables[] = {{{', '.join(tables or ['{0}'])}}};",
        f"static const struct register_shape registers[] = {{{', '.join(registers or ['{0}'])}}};",
        f"static const uint32_t counters[] = {{{', '.join(counters or ['0'])}}};",
        *_beside_tables(program),
        "const struct program kofn_program = {",
        f"    {len(tables)}, {len(registers)}, {len(counters)}, tables, registers, counters,",
        f"    sizeof(struct {'whole' if layout.copies else 'state'}), process,",
        f"    .depart = depart, .queued = {int(queued)},",
        *(["    .meters = METERS, .meter_sizes = meters,"] if program.meters else []),
        *(["    .profiles = PROFILES, .profile_shapes = profiles,"] if program.profiles else []),
        *(["    .value_sets = VALUE_SETS, .value_set_limbs = value_sets,"] if program.value_sets else []),
        "};",
    ]


def _beside_tables(program: Program) -> list[str]:
    """Define sizes of meters, action profiles and value sets, for programs that have them."""
    lines = []
    if program.meters:
        sizes = ", ".join(str(meter.size) for meter in program.meters)
        lines += [f"#define METERS {len(program.meters)}", f"static const uint32_t meters[] = {{{sizes}}};"]
    if program.profiles:
        shapes = ", ".join(f"{{{most_limbs(profile_actions(program, name))}}}" for name in program.profiles)
        lines.append(f"#define PROFILES {len(program.profiles)}")
        lines.append(f"static const struct profile_shape profiles[] = {{{shapes}}};")
    if program.value_sets:
        keys = ", ".join(str(limbs(values.width)) for values in program.value_sets.values())
        lines += [f"#define VALUE_SETS {len(program.value_sets)}", f"static const uint32_t value_sets[] = {{{keys}}};"]
    return lines


def _includes(program: Program) -> tuple[str, ...]:
    metered = program.meters or any(table.meter for table in program.tables)
    beside = (*(METERED if metered else ()), *(INDIRECT if program.profiles else ()))
    return (*INCLUDES, *beside, *(PARSED if program.value_sets else ()))


def _cell_bytes(width: int) -> int:
    return int(c_type(width)[4:-2]) // 8 if width <= 64 else 8 * limbs(width)
