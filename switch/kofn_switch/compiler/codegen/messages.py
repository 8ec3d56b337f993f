"""Messages that a program can write to the switch's log: log messages and failed assertions."""

import re
from dataclasses import dataclass

from kofn_switch.compiler.ir.expressions import Object, Vector
from kofn_switch.compiler.ir.program import Primitive, Program
from kofn_switch.errors import ProgramError

ASSERTIONS = ("assert", "assume")
PLACEHOLDER = re.compile(r"(?<!\\)\{.*?(?<!\\)\}", re.DOTALL)
ESCAPED = re.compile(r"\\([{}])")


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """A message of a program; `text` has a pair of braces for each value, `failed` marks the message of an
    assertion."""

    text: str
    failed: bool

    def fill(self, values: list[int]) -> str:
        """Return the text with the values in place."""
        parts = PLACEHOLDER.split(self.text)
        filled = [parts[0], *(f"{value}{part}" for value, part in zip(values, parts[1:], strict=True))]
        return ESCAPED.sub(r"\1", "".join(filled))


def numbered_messages(program: Program) -> dict[Primitive, int]:
    """Return the statements that have a message, each with its number."""
    wanted = (statement for statement in program.statements if statement.op in ("log_msg", *ASSERTIONS))
    return {statement: number for number, statement in enumerate(dict.fromkeys(wanted))}


def message_of(statement: Primitive) -> Message:
    """Return the message of a log_msg, assert or assume. Raise ProgramError when values and braces do not match."""
    if statement.op in ASSERTIONS:
        place = statement.place
        line = f"{statement.op} failed: {place.fragment.strip()}, file {place.file}, line {place.line}"
        return Message(text=line.replace("{", r"\{").replace("}", r"\}"), failed=True)
    text, values = statement.arguments
    if not isinstance(text, Object) or not isinstance(values, Vector):
        raise ProgramError(f"{statement.place}: this form of log_msg is not executed")
    wanted = len(PLACEHOLDER.findall(text.name))
    if wanted != len(values.items):
        raise ProgramError(f"{statement.place}: a message for {wanted} values is given {len(values.items)}")
    return Message(text=text.name, failed=False)
