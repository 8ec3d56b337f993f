"""Updates that the native part decodes and carries out: inserts of entries that have only a key and an action.

runtime/writes.c defines plain updates. This module makes the plan for decoding them, as words for each table.
"""

from collections.abc import Iterable, Iterator
from ctypes import c_uint32
from functools import cached_property
from itertools import chain

from kofn_switch.compiler.codegen.layout import limbs
from kofn_switch.compiler.codegen.matching import numbered
from kofn_switch.compiler.ir.program import Program
from kofn_switch.compiler.ir.program import Table as ProgramTable
from kofn_switch.engine.engine import Engine
from kofn_switch.native import Words
from kofn_switch.p4runtime.p4info import ActionUse, Field, MatchKind, P4Info, Table

KINDS = {
    MatchKind.EXACT: ("exact", 2),
    MatchKind.TERNARY: ("ternary", 3),
    MatchKind.LPM: ("lpm", 4),
    MatchKind.RANGE: ("range", 6),
    MatchKind.OPTIONAL: ("ternary", 7),
}
"""The program's name for a kind of match, and its number in FieldMatch."""
FIELDS_MAX, LIMBS_MAX = 64, 512  # as in runtime/writes.c


class PlainInserts:
    """The plans for inserts into the program that `engine` runs."""

    def __init__(self, engine: Engine, p4info: P4Info) -> None:
        """Take an engine whose program may be loaded later."""
        self._engine = engine
        self._p4info = p4info

    def carry_out(self, request: bytes, at: int) -> tuple[int, int]:
        """Carry out plain updates, as Engine.insert_plain does."""
        return self._engine.insert_plain(self._plans, request, at)

    @cached_property
    def _plans(self) -> Words:
        program = self._engine.program
        words = [*([] if program is None else _plans(program, self._p4info)), 0]
        return (c_uint32 * len(words))(*words)


def _plans(program: Program, p4info: P4Info) -> Iterator[int]:
    tables = {table.name: table for table in program.tables}
    for name, number in numbered(program).items():
        for table in p4info.tables:
            if table.name == name and _is_plain(table, tables[name]):
                yield from _table_plan(table, tables[name], number)


def _is_plain(table: Table, own: ProgramTable) -> bool:
    """Return whether the table's entries have only an action and perhaps a counter."""
    fields, known = list(zip(table.key, own.key, strict=False)), {action.name for action in own.actions}
    sizes = [len(table.key), *(len(use.action.parameters) for use in table.actions)]
    room = [sum(limbs(field.width) for field in use.action.parameters) for use in table.actions]
    return (
        0 < len(own.key) == len(table.key)
        and all(field.width == mine.width and KINDS[field.kind][0] == mine.kind for field, mine in fields)
        and known.issuperset(use.name for use in table.actions)
        and max(sizes) <= FIELDS_MAX
        and max([sum(limbs(field.width) for field in own.key), *room]) <= LIMBS_MAX
        and own.entries is None
        and own.profile is None
        and own.meter is None
        and not own.idle_timeouts
    )


def _table_plan(table: Table, own: ProgramTable, number: int) -> list[int]:
    ids = {action.name: action.id for action in own.actions}
    fields = [[*value, KINDS[field.kind][1]] for value, field in zip(_values(table.key), table.key, strict=True)]
    actions = [_action_plan(use, ids[use.name]) for use in table.actions if use.in_entries]
    body = [table.id, number, int(own.prioritised), len(fields), len(actions), *chain(*fields, *actions)]
    return [1 + len(body), *body]


def _action_plan(use: ActionUse, number: int) -> list[int]:
    values = list(_values(use.action.parameters))
    return [4 + 3 * len(values), use.id, number, len(values), *chain(*values)]


def _values(fields: Iterable[Field]) -> Iterator[list[int]]:
    """Yield id, width and first limb of each field."""
    at = 0
    for field in fields:
        yield [field.id, field.width, at]
        at += limbs(field.width)
