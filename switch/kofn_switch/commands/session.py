"""The state of commands: the engine, the program's objects by name, and handles."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from kofn_switch.compiler.ir.program import Action, Program, Table
from kofn_switch.engine.engine import Engine
from kofn_switch.errors import EntryNotFound, NoProgram, SwitchError
from kofn_switch.state.entries import Entry, Replica


class CommandError(SwitchError):
    """A command that cannot be carried out; the message says why, in BMv2's words if BMv2 has a message for it."""


class Named(Protocol):
    """An object of the program."""

    @property
    def name(self) -> str:
        """The full name."""


T = TypeVar("T", bound=Named)


@dataclass(slots=True)
class Node:
    """A node of the multicast engine: copies with one replication id, in one group at most."""

    instance: int
    ports: list[int]
    group: int | None = None

    def replicas(self) -> list[Replica]:
        return [Replica(port=port, instance=self.instance) for port in self.ports]


@dataclass(slots=True)
class Session:
    """The session of one switch, which several clients share."""

    engine: Engine
    device_id: int = 0
    port: int | None = None
    nodes: dict[int, Node] = field(default_factory=dict)  # by handle
    groups: dict[int, list[int]] = field(default_factory=dict)  # handles of a multicast group's nodes

    @property
    def program(self) -> Program:
        program = self.engine.program
        if program is None:
            raise NoProgram("no program is loaded")
        return program

    def table(self, name: str) -> Table:
        return find("table", self.program.tables, name)

    def action(self, table: Table, name: str) -> Action:
        return find(f"action of table {table.name}", table.actions, name)

    def handle(self, entry: Entry) -> int:
        return self.engine.place(entry.table, entry.key, entry.priority)

    def entry(self, table: Table, handle: str) -> Entry:
        """Return the entry with that handle. Raise CommandError."""
        try:
            return self.engine.entry_at(table.name, number(handle, "entry handle"))
        except EntryNotFound as error:
            raise CommandError("Invalid table operation (INVALID_HANDLE)") from error


NUMBER_MOST = 3000
"""The most characters of a number; Python writes at most 4,300 decimal digits."""

Command = Callable[[Session, list[str]], Iterator[str]]
Commands = Mapping[str, Command]


def find(kind: str, objects: Iterable[T], name: str) -> T:
    """Return the object of that name, or the only object whose name ends with a dot and `name`. Raise CommandError."""
    listed = list(objects)
    full = [named for named in listed if named.name == name]
    found = full or [named for named in listed if named.name.endswith(f".{name}")]
    if len({named.name for named in found}) == 1:
        return found[0]
    known = ", ".join(sorted(named.name for named in listed)) or "none"
    raise CommandError(f"Invalid {kind} name ({name}): {'several end so' if found else 'there is'} {known}")


def number(text: str, what: str, allowed: range | None = None) -> int:
    """Return a whole number, also in hexadecimal; if `allowed` is None, any number is valid. Raises CommandError.

    A decimal number may begin with zeros, as in BMv2.
    """
    if len(text) > NUMBER_MOST:
        raise CommandError(f"{what} must have at most {NUMBER_MOST} characters, got {len(text)}")
    try:
        found = int(text, 10 if text.isdigit() else 0)
    except ValueError as error:
        raise CommandError(f"Bad format for {what}: {text}") from error
    if allowed is not None and found not in allowed:
        raise CommandError(f"{what} {found} is not in {allowed[0]}..{allowed[-1]}")
    return found


def check_count(words: list[str], least: int, most: int | None = None) -> None:
    """Raise CommandError unless there are `least` to `most` arguments; if `most` is None, exactly `least`."""
    if not least <= len(words) <= (least if most is None else most):
        more = "" if most is None else " or more"
        raise CommandError(f"Invalid number of args, expected {least}{more} but got {len(words)}")
