"""`make reference`: makes pages of docs/reference/ from the code: configuration, commands, files of a run, Python.

The texts are the comments and docstrings beside the definitions, so that a text is written once.  A test fails if a
page differs from the page that this module makes.
"""

import dataclasses
import inspect
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import click
import msgspec
import msgspec.inspect as types

from kofn.cli.main import main as kofn
from kofn.cli.python_reference import python
from kofn.cli.reference_tables import annotations, comments, linked, table
from kofn.experiments import artefact
from kofn.experiments import experiment_file as file
from kofn.report.compressed import Compressed
from kofn.report.in_force import InForce
from kofn.report.interval import Interval
from kofn.report.interventions import Intervention
from kofn.report.over_seeds import TrialOverSeeds
from kofn.report.summary import TrialSummary
from kofn.web import frames
from kofn_common.config import schema
from kofn_common.config.late_rules import RULES
from kofn_common.config.objectives import OBJECTIVES
from kofn_common.results import folder
from kofn_common.results.account import Account
from kofn_common.results.event_log import LoggedEvent
from kofn_common.results.provenance import Provenance
from kofn_common.results.record import RunRecord
from kofn_common.results.samples import Sample, SlotSample
from kofn_common.results.worker_metrics import Iteration, Logged, Totals
from kofn_controller.job.journal import Journal

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "docs" / "reference"
MADE = "<!-- Made by `make reference`: change the code, not this file. -->"
WIDTH = 100

REPEATED = ("layer", "straggler", "shock", "shard", "fault", "link", "cpu", "event")
"""The tables that a configuration may have several times."""


FRAMES = (
    frames.RunHeader,
    frames.JobHeader,
    frames.Frame,
    frames.WorkerFrame,
    frames.IterationPoint,
    frames.Span,
    frames.EventFrame,
)


def main() -> int:
    for name, text in documents().items():
        FOLDER.mkdir(parents=True, exist_ok=True)
        (FOLDER / name).write_text(text)
    return 0


def documents() -> dict[str, str]:
    """Return the content of the made pages of docs/reference/, by file name."""
    return {
        "configuration.md": configuration(),
        "commands.md": commands(),
        "experiment.md": experiment(),
        "results.md": results(),
        "python.md": f"{MADE}\n\n{python()}",
    }


# --- configuration --------------------------------------------------------------------------------------------------


def configuration() -> str:
    """Return the page of every table and key of a configuration."""
    lines = [
        "# Configuration",
        MADE,
        "A run is a TOML file. Every key has a default, except those marked *required*, so an empty file is the default"
        " of each key; `kofn run` without a file takes `common/kofn_common/config/default.toml`. A wrong key, type or"
        " value is an error that names the key and says what must hold. `--set SECTION.KEY=VALUE` gives a key"
        " another value on the command line, where a path is relative to the working folder.",
        f"An **objective** is one of {_codes((*OBJECTIVES.built_in, 'fixed:K'))}, `RULE:K`, `module:Name`,"
        " or the name of a plug-in; a **rule**"
        f" for late gradients is one of {_codes(RULES)}.",
    ]
    for name, section in _sections():
        head = f"[[{name}]]" if name in REPEATED else f"[{name}]"
        lines += [f"## `{head}`", linked(inspect.getdoc(section) or ""), _keys(section)]
    return "\n\n".join(lines) + "\n"


def _sections() -> Iterator[tuple[str, type]]:
    for field in types.type_info(schema.Config).fields:  # type: ignore[attr-defined]
        kind: Any = field.type.item_type if isinstance(field.type, types.VarTupleType) else field.type
        yield field.name, kind.cls


def experiment() -> str:
    """Return the page of every table and key of an experiment file."""
    kinds = {
        "[experiment]": file.ExperimentSection,
        "[[contender]]": file.ContenderSection,
        "[[claim]]": file.ClaimSection,
        "[[table]]": file.TableSection,
        "[[figure]]": file.FigureSection,
    }
    tables = {head: [f"## `{head}`", inspect.getdoc(kind) or "", _keys(kind)] for head, kind in kinds.items()}
    modes = [[f"`{name}`", words] for name, words in file.MODES.items()]
    own = ["`module:function`", "a function that gets a cell, and returns a dict: the row of the cell's results"]
    lines = [
        "# The experiment file",
        MADE,
        "`kofn experiment FILE` carries out a TOML file: every combination of the axes' values, of the contenders and"
        " of the seeds is a cell, one training. [From a question to a figure](../tutorial/question.md) explains the"
        " file by an example, and examples/experiments/ has more. A wrong key or value is refused before the first"
        " cell. So is an unknown column of the [results](python.md#summary), unless a function gives the mode or"
        " further columns.",
        *tables.pop("[experiment]"),
        table(["mode", "a cell is carried out"], [*modes, own]),
        "## `[base]` and `[axes]`",
        "The base is a [configuration](configuration.md), in a file (`experiment.base`) or in the table `[base]`. It"
        " has no run.trials, run.seed and run.seeds, because contenders and seeds give them. Without a base, the base"
        " is the configuration of `kofn run`.",
        "An axis is a list of values, named by their SECTION.KEY; or a table of named changes. A change is a table of"
        " SECTION.KEY = value, of sections, and of lists, which replace the base's list of that name; or the path of a"
        " file with such tables. If all names are whole numbers, they are numbers in figures. A change of a later axis,"
        ' and then of the contender, wins. Ranks can depend on the number of workers (`"last 2"`), and so can k'
        " (`fixed:n-1`, `merge:n/2`, `async:3n/4`).",
        "```toml\n"
        "[axes]\n"
        '"job.workers" = [4, 8]\n'
        'straggler = { slow = { straggler = [{ workers = "last 1", mean_ms = 60 }] }, none = { straggler = [] } }\n'
        'link = { slow = { "network.link_mbps" = 20 }, fast = "fast-link.toml" }\n'
        "```",
        *(line for several in tables.values() for line in several),
        "## Functions",
        "A table cannot say everything. A key with `module:function` names a Python function, whose module is looked"
        " for in the folder of the file, or in `experiment.modules`.",
        table(
            ["key", "gets", "returns"],
            [
                ["`experiment.mode`", "a Cell (kofn.experiments.cells)", "a dict of numbers and texts"],
                ["`experiment.cells`", "a list of Point (kofn.experiments.experiment_file)", "the points to run"],
                ["`experiment.own_columns`", "a FinishedTrial (kofn.experiments.reader)", "a dict of further columns"],
                ["`claim.function`", "the [kofn.Experiment](python.md)", "Verdicts (kofn.experiments.claims)"],
                ["`table.function`", "the kofn.Experiment", "a data frame"],
                ["`figure.function`", "the kofn.Experiment", "a matplotlib figure"],
            ],
        ),
        "The table `[own]` of the base, of an axis or of a contender's `set` has values for these functions: point.own,"
        " or cell.point.own. It is no part of a job's configuration. If a cell's column `fault` has a text, the"
        " experiment ends with exit code 1 and names the cell and the text.",
        "## The folder",
        "```text\n" + (inspect.getdoc(artefact) or "").partition("\n\n")[2] + "\n```",
        "`kofn experiment FOLDER` continues the experiment in a folder, or repeats a finished one in a new folder and"
        " compares the numbers. A simulated repetition takes the CPU times in `costs/`, so its numbers are equal.",
    ]
    return "\n\n".join(lines) + "\n"


def _keys(section: type) -> str:
    notes = comments(section)
    rows = [
        [f"`{field.name}`", _kind(field.type), _default(field), notes.get(field.name, "")]
        for field in types.type_info(section).fields  # type: ignore[attr-defined]
    ]
    return table(["key", "allowed", "default", ""], rows)


def _default(field: Any) -> str:
    if field.required:
        return "*required*"
    value = field.default_factory() if field.default is msgspec.NODEFAULT else field.default
    if value is None:
        return "none"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, str):
        return f'`"{value}"`'
    if isinstance(value, tuple):
        return f"`{list(value)}`"
    return f"`{value}`"


def _kind(kind: Any) -> str:  # noqa: PLR0911  # one return for each kind of value
    """Return the values of a kind in words."""
    match kind:
        case types.UnionType():
            return " or ".join(_kind(member) for member in kind.types if not isinstance(member, types.NoneType))
        case types.LiteralType():
            return _codes(f'"{value}"' for value in kind.values)
        case types.VarTupleType():
            return f"a list: {_kind(kind.item_type)}"
        case types.BoolType():
            return "`true`, `false`"
        case types.IntType() | types.FloatType():
            return " ".join(["integer" if isinstance(kind, types.IntType) else "number", *_bounds(kind)])
        case types.StrType():
            return "string"
        case types.CustomType():
            return "path"
        case types.DictType():
            return "a table"
    raise TypeError(f"a kind of value that the reference has no words for: {kind}")


def _bounds(kind: Any) -> Iterator[str]:
    low, high = kind.ge, kind.le
    if low is not None and high is not None:
        yield f"{low} to {high}"
    elif low is not None:
        yield f">= {low}"
    if kind.gt is not None:
        yield f"> {kind.gt}"
    if high is not None and low is None:
        yield f"<= {high}"
    if kind.lt is not None:
        yield f"< {kind.lt}"


def _codes(values: Iterable[str]) -> str:
    return ", ".join(f"`{value}`" for value in values)


# --- commands -------------------------------------------------------------------------------------------------------


def commands() -> str:
    """Return the page with the help of every command."""
    lines = [
        "# Commands",
        MADE,
        "`.venv/bin/kofn` has the commands below. `kofn-switch`, the embedded switch alone, has simple_switch_grpc's"
        " flags: [switch/README.md](../../switch/README.md).",
        "## make",
        f"```text\n{_targets()}\n```",
    ]
    for context in _contexts(kofn, "kofn", None):
        lines += [f"## {context.command_path}", f"```text\n{_help(context)}\n```"]
    return "\n\n".join(lines) + "\n"


def _targets() -> str:
    """Return the output of `make help`."""
    found = re.findall(r"^([a-z0-9-]+):.*?## (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    return "\n".join(f"make {name:<11} {text}" for name, text in found)


def _contexts(command: click.Command, name: str, parent: click.Context | None) -> Iterator[click.Context]:
    """Yield the context of the command, and of each command below it."""
    context = click.Context(
        command, parent, name, terminal_width=WIDTH, max_content_width=WIDTH, **command.context_settings
    )
    yield context
    if isinstance(command, click.Group):
        for below in command.list_commands(context):
            found = command.get_command(context, below)
            assert found is not None
            yield from _contexts(found, below, context)


def _help(context: click.Context) -> str:
    return "\n".join(line.rstrip() for line in context.get_help().splitlines())


# --- results --------------------------------------------------------------------------------------------------------


def results() -> str:
    """Return the page of a run's files and their contents."""
    layout = (inspect.getdoc(folder) or "").partition("\n\n")[2]
    lines = [
        "# Results",
        MADE,
        "The files that a run leaves in `runs/NAME-YYYYmmdd-HHMMSS/` (or `--out`); `runs/latest` is the newest run."
        " Names that end in `_s` are seconds, `_ms` milliseconds; clocks are Unix time.",
        f"```text\n{layout}\n```",
        "## worker-R.jsonl",
        "One JSON object an iteration. A key without a value is null or left out.",
        _fields(Iteration),
        "Each call of a script's `session.log()` writes one line:",
        _fields(Logged),
        'The last line of each process is `{"summary": {...}}`:',
        _fields(Totals),
        "`account` is, in both:",
        inspect.getdoc(Account) or "",
        _fields(Account),
        "## worker-R.npz",
        "NumPy arrays of int64, of the shape (blocks,). They are checksums of `gradients` (the sum of all gradients),"
        " `aggregated` (the part in sums), `residual` (the pending part), `discarded`, and `results` (the sum of all"
        " applied results). The checksum of a block is linear: the sum of its values, in units of 2**-40, times fixed"
        " odd factors, modulo 2**64 ([ledger.c](../../host/kofn_host/compression/ledger.c)). So for every block"
        " gradients = aggregated + residual + discarded. Where `received` is 1, `aggregated` of all workers add up to"
        " `results`. Where `received` is 0, only another worker gets the block's sums, and `results` is 0. Ring, gloo"
        " and MPI leave no such file.",
        "## status.jsonl",
        "The controller's `Status` message of [kofn.proto](../../common/kofn_common/rpc/kofn.proto) as JSON, about"
        " twice a second; `kofn status --json` prints the same.",
        *_messages("Status", "WorkerStatus", "Expected", "Change"),
        "## samples.jsonl",
        inspect.getdoc(Sample) or "",
        _fields(Sample),
        "`slots` is a list of lists of",
        _fields(SlotSample),
        "## events.jsonl",
        inspect.getdoc(LoggedEvent) or "",
        _fields(LoggedEvent),
        "## decisions.jsonl",
        (inspect.getdoc(Journal) or "").partition("\n\n")[2],
        "## summary.json",
        "An object with `ok` (nothing failed, and no trial was changed by hand), `failures` (sentences), `job`,"
        " `metric` (`name`, `target`, `better`, `percent`; null without a metric), `speedup` (the baseline's"
        " time to the target over the first trial's; null if they cannot be compared), `not_compared` (trials that are"
        " not compared, with reasons), `early_end` (why the run ended before its last trial did), `not_run` (trials"
        " that finished no iteration), `provenance` (see run.json) and `trials`. A trial has a `name` (the objective,"
        " and the changes during the trial) and:",
        _fields(TrialSummary),
        "`interventions` is a list of",
        _fields(Intervention),
        "`in_force` is a list of",
        _fields(InForce),
        "`compressed` is",
        inspect.getdoc(Compressed) or "",
        _fields(Compressed),
        "With `run.seeds`, summary.json in the folder above the seeds' folders has `ok`, `failures`, `early_end`,"
        " `seeds`, `provenance` and `over_seeds`, a list of jobs with `trials`:",
        _fields(TrialOverSeeds),
        "An interval is",
        inspect.getdoc(Interval) or "",
        _fields(Interval),
        "## Frames of the live page",
        (inspect.getdoc(frames) or "").partition("\n\n")[2],
        *(part for kind in FRAMES for part in (f"`{kind.__name__}`: {inspect.getdoc(kind)}", _fields(kind))),
        "## run.json",
        inspect.getdoc(RunRecord) or "",
        _fields(RunRecord),
        "`provenance` is, there and in summary.json:",
        _fields(Provenance),
    ]
    return "\n\n".join(lines) + "\n"


def _fields(kind: type) -> str:
    """Return a table of a class's fields: name, type, comment or docstring."""
    notes = comments(kind)
    names = [field.name for field in dataclasses.fields(kind)] if dataclasses.is_dataclass(kind) else _names(kind)
    written = annotations(kind)
    return table(["field", "type", ""], [[f"`{name}`", f"`{written[name]}`", notes.get(name, "")] for name in names])


def _names(kind: Any) -> tuple[str, ...]:
    names: tuple[str, ...] = kind.__struct_fields__
    return names


def _messages(*names: str) -> Iterator[str]:
    """Yield the tables of messages' fields, from the proto file."""
    text = (ROOT / "common" / "kofn_common" / "rpc" / "kofn.proto").read_text()
    for name in names:
        found = re.search(rf"^message {name} {{\n(.*?)^}}", text, re.MULTILINE | re.DOTALL)
        assert found is not None, name
        rows: list[list[str]] = []
        for line in found[1].splitlines():
            field = re.match(r"\s+((?:repeated )?[\w<>, ]+) (\w+) = \d+;\s*(?://\s*(.*))?$", line)
            if field:
                rows.append([f"`{field[2]}`", f"`{field[1]}`", field[3] or ""])
            elif more := re.match(r"\s+//\s*(.*)$", line):
                rows[-1][2] += f" {more[1]}"
        yield f"`{name}`:"
        yield table(["field", "type", ""], rows)


if __name__ == "__main__":
    sys.exit(main())
