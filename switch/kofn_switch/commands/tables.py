"""Commands about tables: entries, default actions."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from kofn_switch.commands.profiles import dumped
from kofn_switch.commands.session import CommandError, Commands, Session, check_count, number
from kofn_switch.commands.values import (
    MANY,
    RULE,
    STARS,
    key,
    kind_of,
    normal,
    octets,
    parameters,
    priority_of,
    short,
    spelled,
)
from kofn_switch.compiler.ir.program import Action, Table
from kofn_switch.errors import EntryNotFound
from kofn_switch.state.entries import Entry, GroupRef, MemberRef
from kofn_switch.state.tables import PRIORITY_MAX

WIDE = 20
TIMEOUT_MS_MAX = 0x7FFFFFFF


def show_tables(session: Session, words: list[str]) -> Iterator[str]:
    """List the tables with their keys: show_tables"""
    check_count(words, 0)
    yield from (_described(table) for table in sorted(session.program.tables, key=lambda table: table.name))


def show_actions(session: Session, words: list[str]) -> Iterator[str]:
    """List the actions with their parameters: show_actions"""
    check_count(words, 0)
    yield from sorted({_signature(action) for action in session.program.actions.values()})


def table_info(session: Session, words: list[str]) -> Iterator[str]:
    """Show a table and its actions: table_info <table name>"""
    check_count(words, 1)
    yield _described(session.table(words[0]))
    yield "*" * 80
    yield from table_show_actions(session, words)


def table_show_actions(session: Session, words: list[str]) -> Iterator[str]:
    """List the actions of a table: table_show_actions <table name>"""
    check_count(words, 1)
    yield from sorted(map(_signature, session.table(words[0]).actions))


def table_add(session: Session, words: list[str]) -> Iterator[str]:
    """Add an entry: table_add <table name> <action name> <match fields> => <action parameters> [priority]"""
    check_count(words, 3, MANY)
    table = session.table(words[0])
    action = session.action(table, words[1])
    matched, given, priority = _split(table, words[2:])
    typed = key(table, matched)
    entry = Entry(
        table=table.name,
        key=normal(table, typed),
        typed=typed,
        priority=priority,
        action=action.name,
        parameters=parameters(action, given),
    )
    session.engine.insert(entry)
    yield f"Adding entry to {kind_of(table)} match table {words[0]}"
    fields = zip(table.key, typed, strict=True)
    yield f"{'match key:':{WIDE}} " + "\t".join(
        f"{field.kind.upper()}-{spelled(field, match, octets)}" for field, match in fields
    )
    yield from _calls(words[1], action, entry.parameters)
    yield f"Entry has been added with handle {session.handle(entry)}"


def table_modify(session: Session, words: list[str]) -> Iterator[str]:
    """Give an entry another action: table_modify <table name> <action name> <entry handle> [action parameters]"""
    check_count(words, 3, MANY)
    table = session.table(words[0])
    action = session.action(table, words[1])
    entry = session.entry(table, words[2])
    session.engine.modify(replace(entry, action=action.name, parameters=parameters(action, words[3:])))
    yield f"Modifying entry {words[2]} for {kind_of(table)} match table {words[0]}"


def table_delete(session: Session, words: list[str]) -> Iterator[str]:
    """Delete an entry: table_delete <table name> <entry handle>"""
    check_count(words, 2)
    yield f"Deleting entry {number(words[1], 'entry handle')} from {words[0]}"
    _delete(session, session.entry(session.table(words[0]), words[1]))


def table_clear(session: Session, words: list[str]) -> Iterator[str]:
    """Delete all entries: table_clear <table name>"""
    check_count(words, 1)
    for entry in session.engine.entries(session.table(words[0]).name):
        _delete(session, entry)
    yield from ()


def table_num_entries(session: Session, words: list[str]) -> Iterator[str]:
    """Count the entries: table_num_entries <table name>"""
    check_count(words, 1)
    yield str(len(session.engine.entries(session.table(words[0]).name)))


def table_set_default(session: Session, words: list[str]) -> Iterator[str]:
    """Set the default action: table_set_default <table name> <action name> <action parameters>"""
    check_count(words, 2, MANY)
    table = session.table(words[0])
    action = session.action(table, words[1])
    given = parameters(action, words[2:])
    session.engine.set_default(table.name, action.name, given)
    yield f"Setting default action of {words[0]}"
    yield from _calls(words[1], action, given)


def table_reset_default(session: Session, words: list[str]) -> Iterator[str]:
    """Go back to the program's default action: table_reset_default <table name>"""
    check_count(words, 1)
    session.engine.reset_default(session.table(words[0]).name)
    yield from ()


def table_set_timeout(session: Session, words: list[str]) -> Iterator[str]:
    """Set an entry's idle timeout: table_set_timeout <table name> <entry handle> <timeout (ms)>"""
    check_count(words, 3)
    timeout_ms = number(words[2], "timeout", range(TIMEOUT_MS_MAX + 1))
    entry = session.entry(session.table(words[0]), words[1])
    session.engine.modify(replace(entry, idle_timeout_ns=timeout_ms * 1_000_000))
    yield f"Setting a {timeout_ms} ms timeout for entry {words[1]}"


def table_dump(session: Session, words: list[str]) -> Iterator[str]:
    """Show the entries and the default action: table_dump <table name>"""
    check_count(words, 1)
    table = session.table(words[0])
    yield from (RULE, "TABLE ENTRIES")
    for entry in session.engine.entries(table.name):
        yield STARS
        yield from _dumped(session, table, entry)
    if table.profile is not None:
        yield from dumped(session, session.program.profiles[table.profile])
    yield from (RULE, "Dumping default entry")
    default = session.engine.default(table.name)
    yield "EMPTY" if default is None else _entered(*default)
    yield RULE


def table_dump_entry(session: Session, words: list[str]) -> Iterator[str]:
    """Show an entry: table_dump_entry <table name> <entry handle>"""
    check_count(words, 2)
    table = session.table(words[0])
    yield from _dumped(session, table, session.entry(table, words[1]))


def table_dump_entry_from_key(session: Session, words: list[str]) -> Iterator[str]:
    """Show the entry of a key: table_dump_entry_from_key <table name> <match fields> [priority]"""
    check_count(words, 2, MANY)
    table = session.table(words[0])
    matched = words[1:-1] if table.prioritised else words[1:]
    wanted = normal(table, key(table, matched))
    try:
        entry = session.engine.entry(table.name, wanted, priority_of(table, words[-1]))
    except EntryNotFound as error:
        raise CommandError("Invalid table operation (BAD_MATCH_KEY)") from error
    yield from _dumped(session, table, entry)


def _split(table: Table, words: list[str]) -> tuple[list[str], list[str], int]:
    """Return match fields, parameters and priority."""
    rest = words[:-1] if table.prioritised else words
    at = rest.index("=>") if "=>" in rest else len(rest)
    return rest[:at], rest[at + 1 :], priority_of(table, words[-1])


def _delete(session: Session, entry: Entry) -> None:
    session.engine.delete(entry.table, entry.key, entry.priority)


def _described(table: Table) -> str:
    fields = ",\t".join(f"{field.name}({field.kind}, {field.width})" for field in table.key)
    return f"{table.name:30} [implementation={table.profile}, mk={fields}]"


def _signature(action: Action) -> str:
    listed = ",\t".join(f"{item.name}({item.width})" for item in action.parameters)
    return f"{action.name:30} [{listed}]"


def _calls(name: str, action: Action, given: Sequence[int]) -> Iterator[str]:
    data = (octets(value, item.width) for value, item in zip(given, action.parameters, strict=True))
    yield f"{'action:':{WIDE}} {name}"
    yield f"{'runtime data:':{WIDE}} " + "\t".join(data)


def _dumped(session: Session, table: Table, entry: Entry) -> Iterator[str]:
    width = max([WIDE, *(len(field.name) for field in table.key)])
    yield f"Dumping entry {session.handle(entry):#x}"
    yield "Match key:"
    shown = (
        entry.typed if entry.typed and kind_of(table) == "lpm" else entry.key
    )  # as BMv2, which masks keys of other kinds
    for field, match in zip(table.key, shown, strict=True):
        yield f"* {field.name:{width}}: {field.kind.upper():10}{spelled(field, match)}"
    if table.prioritised:
        yield f"Priority: {PRIORITY_MAX - entry.priority}"
    match entry.via:
        case MemberRef(member=member):
            yield f"Index: member({member - 1})"
        case GroupRef(group=group):
            yield f"Index: group({group - 1})"
        case _:
            yield _entered(entry.action, entry.parameters)
    if entry.idle_timeout_ns:
        since_ms = session.engine.time_since_hit(table.name, entry.key, entry.priority) // 1_000_000
        yield f"Life: {since_ms}ms since hit, timeout is {entry.idle_timeout_ns // 1_000_000}ms"


def _entered(name: str, given: Sequence[int]) -> str:
    return f"Action entry: {name} - {', '.join(map(short, given))}"


COMMANDS: Commands = {
    command.__name__: command
    for command in (
        *(show_tables, show_actions, table_info, table_show_actions, table_add, table_modify, table_delete),
        *(table_clear, table_num_entries, table_set_default, table_reset_default, table_set_timeout),
        *(table_dump, table_dump_entry, table_dump_entry_from_key),
    )
}
