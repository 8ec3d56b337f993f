"""The interpreter: from a line of text to the lines of its answer."""

from collections.abc import Iterator

from kofn_switch.commands import arrays, copies, ports, profiles, tables
from kofn_switch.commands.session import Session
from kofn_switch.errors import SwitchError

COMMANDS = {**tables.COMMANDS, **profiles.COMMANDS, **arrays.COMMANDS, **copies.COMMANDS, **ports.COMMANDS}


def answer(session: Session, line: str) -> str:
    """Return the answer to the command in `line`, a newline after each line. Errors are answers."""
    said: list[str] = []
    try:
        said.extend(_lines(session, line.split()))
    except SwitchError as error:
        said.append(f"Error: {error}")
    return "".join(f"{line}\n" for line in said)


def _lines(session: Session, words: list[str]) -> Iterator[str]:
    if not words or words[0].startswith("#"):
        return
    name, *arguments = words
    if name == "help":
        yield from _help(arguments)
    elif name in COMMANDS:
        yield from COMMANDS[name](session, arguments)
    else:
        yield f"*** Unknown syntax: {' '.join(words)}"


def _help(names: list[str]) -> Iterator[str]:
    """List the commands, or explain the named commands."""
    if not names:
        yield from ("", "Documented commands (type help <topic>):", "=" * 40, *sorted(COMMANDS))
    for name in names:
        known = COMMANDS.get(name)
        yield f"*** No help on {name}" if known is None else " ".join((known.__doc__ or "").split())
