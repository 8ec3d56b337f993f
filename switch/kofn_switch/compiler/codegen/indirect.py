"""Indirect tables in C: their entries refer to members of an action profile, or to groups of members.

A member holds its action's place in the profile's list of names, because each table has its own copies of the actions.
"""

from kofn_switch.compiler.codegen.hashing import emit_hash
from kofn_switch.compiler.codegen.lowering import Lowering
from kofn_switch.compiler.codegen.matching import stored_limbs
from kofn_switch.compiler.ir.program import Action, Program, Table


def profile_actions(program: Program, profile: str) -> list[Action]:
    """Return the actions that the profile's members can have, one of each name."""
    tables = [table for table in program.tables if table.profile == profile]
    return list({action.name: action for table in tables for action in table.actions}.values())


def member_numbers(program: Program, table: Table) -> dict[int, int]:
    """Return, for the id of each action of an indirect table, the action's place in the profile's list."""
    names = [action.name for action in profile_actions(program, str(table.profile))]
    return {action.id: names.index(action.name) for action in table.actions}


def emit_choice(low: Lowering, table: Table) -> None:
    """Write statements that set `member` to the member that the entry selects, or to a member without an action."""
    block, program = low.block, low.layout.program
    profile = program.profiles[str(table.profile)]
    number = list(program.profiles).index(profile.name)
    at = stored_limbs(table)
    block.add(
        "static const struct member nothing = {UINT64_MAX};",
        "const struct member *member = NULL;",
        f"const struct profile *profile = &D->in->profiles[{number}];",
        f"if (entry->action == INDIRECT_MEMBER) member = member_at(profile, entry->limbs[{at}]);",
    )
    if profile.selector is not None:
        with block.braces("if (entry->action == INDIRECT_GROUP)"):
            value = emit_hash(low, profile.selector)
            block.add(f"member = member_of(profile, entry->limbs[{at}], {value});")
    block.add("if (!member) member = &nothing;")
