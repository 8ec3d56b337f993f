"""docs/reference/python.md: the names of `kofn` and `kofn_torch`, and the columns of the data frames."""

import ast
import inspect
import re
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import kofn
from kofn.cli.reference_tables import comments, table
from kofn.report.frames import TABLES, Column
from kofn.run import RunPackage
from kofn_common.exports import exports

INTRODUCTION = """\
`import kofn` gives the names below; a name is loaded at its first use. [How to](../howto/python.md) use them.

- `kofn.run`, `kofn.simulate` and `kofn.read` give a `kofn.Run`.
- A configuration is a `kofn.Config`, a path, TOML text (any text with a line break or a `=`), or a dict of tables.
- `kofn.Communicator` is the interface of all collectives; [how to make and use one](../howto/communicator.md).
- Your own codec, workload, objective or protocol derives from a [class of `kofn`](#classes-to-derive-from).
- `kofn.KofnError` is the base of all errors, with the texts that the commands print; `kofn.ConfigError` is a
  configuration that cannot be run."""

FUNCTIONS: dict[str, Callable[..., Any]] = {
    "run": RunPackage.__call__,
    "simulate": kofn.simulate,
    "read": kofn.read,
    "Config.load": kofn.Config.load,
    "Config.parse": kofn.Config.parse,
}

CALLS = ("all_reduce", "begin", "reduce_scatter", "all_gather", "broadcast", "barrier", "close")
"""Methods of a Communicator."""

PIECES = ("put", "priority", "wait", "result")
"""Methods of a StreamedGradient."""

DERIVED = {
    "Codec": "codec",
    "Workload": "model",
    "TorchWorkload": "model",
    "StragglerSource": "stragglers",
    "Objective": "objective",
    "Policy": "objective",
    "PeerCommunicator": "collective",
    "PacketCollective": "protocol",
    "Speaker": "protocol",
    "DataPlane": "protocol",
}
"""The classes that a user derives from, or whose methods a user's class has, and their how-to."""

DERIVED_INTRODUCTION = """\
`from kofn import Workload` needs the package `kofn`. On a machine with a worker or a controller alone, import the same
class from its module in this table."""

TORCH = Path(kofn.__file__).parents[1] / "pytorch" / "kofn_torch"
"""The folder of kofn_torch, which is read, not imported: PyTorch may be missing."""

OF_SESSION = ("iteration", "iterations", "done", "loss", "state_dict", "load_state_dict", "save_every", "close")


def python() -> str:
    lines = ["# Python", INTRODUCTION]
    for name, function in FUNCTIONS.items():
        lines += [f"## kofn.{name}", f"```text\nkofn.{name}{signature(function)}\n```", inspect.getdoc(function) or ""]
    lines += ["## kofn.Run", inspect.getdoc(kofn.Run) or "", table(["member", ""], list(_members(kofn.Run)))]
    for kind, names in ((kofn.Communicator, CALLS), (kofn.StreamedGradient, PIECES)):
        lines += [f"## kofn.{kind.__name__}", _text(kind)]
        for name in names:
            call = getattr(kind, name)
            lines += [f"### {name}", f"```text\n{name}{signature(call)}\n```", inspect.getdoc(call) or ""]
    lines += list(_plug_ins()) + list(_torch())
    lines += [
        "## Data frames",
        "Columns that end in `_s` are seconds. In a simulation, time begins with the trial at 0.",
    ]
    for name, schema in TABLES.items():
        rows = [[f"`{column.name}`", column.unit, f"`{column.dtype}`", meaning(column)] for column in schema.columns()]
        lines += [f"### {name}", f"A row is {schema.rows}.", table(["column", "unit", "dtype", ""], rows)]
    return "\n\n".join(lines) + "\n"


def meaning(column: Column) -> str:
    """Return the comment on a column's field."""
    return next(said[column.field] for kind in column.kind.__mro__ if column.field in (said := comments(kind)))


def _plug_ins() -> Iterator[str]:
    """Yield the classes that a user derives from, and the other names that such classes need."""
    modules = exports(kofn.__file__)
    rows = [
        [f"`{name}`", f"[{guide}](../howto/{guide}.md)", _summary(getattr(kofn, name)), f"`{modules[name]}`"]
        for name, guide in DERIVED.items()
    ]
    yield from ("## Classes to derive from", DERIVED_INTRODUCTION, table(["name", "how to", "", "module"], rows))
    described = {"Run", "Communicator", "StreamedGradient", *DERIVED, *(name.partition(".")[0] for name in FUNCTIONS)}
    others = [[f"`{name}`", f"`{modules[name]}`"] for name in sorted(modules) if name not in described]
    yield from ("## Other names", "Such classes use the other names of `kofn`:", table(["name", "module"], others))


def _summary(kind: type) -> str:
    """Return the first paragraph of a docstring in one line."""
    return (inspect.getdoc(kind) or "").partition("\n\n")[0].replace("\n", " ")


def _torch() -> Iterator[str]:
    """Yield the functions and the Session of kofn_torch."""
    functions = {
        statement.name: statement for statement in _parsed("attach.py") if isinstance(statement, ast.FunctionDef)
    }
    for name in ("ddp_hook", "elastic"):
        text = _with_code(ast.get_docstring(functions[name]) or "")
        yield from (f"## kofn_torch.{name}", f"```text\nkofn_torch.{name}{written(functions[name])}\n```", text)
    for used in (statement for statement in _parsed("process_group.py") if isinstance(statement, ast.FunctionDef)):
        if used.name in ("use", "follow"):
            call = f"```text\nkofn_torch.{used.name}{written(used)}\n```"
            yield from (f"## kofn_torch.{used.name}", call, ast.get_docstring(used) or "")
    state, session = (
        next(statement for statement in _parsed(file) if isinstance(statement, ast.ClassDef) and statement.name == name)
        for file, name in (("state.py", "ResumableSession"), ("session.py", "Session"))
    )
    members = {
        statement.name: ast.get_docstring(statement) or ""
        for statement in (*reversed(state.body), *reversed(session.body))
        if isinstance(statement, ast.FunctionDef)
    }
    rows = [[f"`{name}`", members[name].replace("\n", " ")] for name in OF_SESSION]
    rows = [["`rank`, `workers`", "This worker's rank, from 0, and the number of workers."], *rows]
    yield from ("## kofn_torch.Session", ast.get_docstring(session) or "", table(["member", ""], rows))


def _parsed(name: str) -> list[ast.stmt]:
    return ast.parse((TORCH / name).read_text()).body


def _text(kind: type) -> str:
    return _with_code(inspect.getdoc(kind) or "")


def _with_code(text: str) -> str:
    """Return a docstring as Markdown: its indented lines are code."""
    return re.sub(r"(?m)((?:^    .*\n)+)", lambda code: f"```python\n{textwrap.dedent(code[1])}```\n", text)


def signature(function: Callable[..., Any]) -> str:
    """Return the signature as in the source, a parameter a line, without self."""
    (definition,) = ast.parse(textwrap.dedent(inspect.getsource(function))).body
    assert isinstance(definition, ast.FunctionDef)
    return written(definition)


def written(definition: ast.FunctionDef) -> str:
    """Return the signature of a function that is not imported."""
    assert definition.returns
    arguments = definition.args
    positional = arguments.posonlyargs + arguments.args
    defaults = [None] * (len(positional) - len(arguments.defaults)) + arguments.defaults
    parameters = [
        _parameter(*pair) for pair in zip(positional, defaults, strict=True) if pair[0].arg not in ("self", "cls")
    ]
    parameters += [f"*{_parameter(arguments.vararg)}"] if arguments.vararg else ["*"] * bool(arguments.kwonlyargs)
    parameters += [_parameter(*pair) for pair in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)]
    parameters += [f"**{_parameter(arguments.kwarg)}"] if arguments.kwarg else []
    return "".join(["(", *(f"\n    {text}," for text in parameters), f"\n) -> {_plain(definition.returns)}"])


def _parameter(argument: ast.arg, default: ast.expr | None = None) -> str:
    kind = f": {_plain(argument.annotation)}" if argument.annotation else ""
    return f"{argument.arg}{kind}" + (f" = {ast.unparse(default)}" if default else "")


def _plain(annotation: ast.expr) -> str:
    """Return an annotation without the quotes around names that are defined later."""
    return ast.unparse(annotation).strip("'")


def _members(kind: type) -> Iterator[list[str]]:
    for name, member in vars(kind).items():
        if not name.startswith("_"):
            yield [
                f"`{name}{'()' if inspect.isfunction(member) else ''}`",
                (inspect.getdoc(member) or "").replace("\n", " "),
            ]
