"""The experiment file: axes, contenders and seeds, and what is claimed and drawn of their results.

A cell is one training: a combination of the axes' values, a contender and a seed. Its configuration is the base,
changed by each axis, by the contender's `set`, trial and seed. Changes are made in the tables as TOML has them, before
any default that depends on other keys is set.
"""

import copy
import itertools
import os
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import msgspec
from msgspec import structs

from kofn.experiments.result_columns import TRIAL, scaled_trial
from kofn.run.plan import DEFAULT_CONFIG
from kofn_common.config.errors import ConfigError
from kofn_common.config.overrides import PATHS, override
from kofn_common.config.plugins import MODULE, Registry, look_in
from kofn_common.config.refusals import refusal
from kofn_common.config.schema import Config
from kofn_common.config.section import Finite, PositiveInt, Section
from kofn_common.config.suggestion import did_you_mean

HOOKS = Registry(kind="function", folders=())
"""Functions that an experiment file names as `module:function`; modules are looked for in the file's folder."""

RUN, SIMULATE, SCALE = "run", "simulate", "scale"
MODES = {
    RUN: "for real, one training after another",
    SIMULATE: "in virtual time, packet by packet (kofn simulate)",
    SCALE: "by iterations, without packets and training (kofn simulate --scale)",
}

RELATIVE_K = re.compile(r"(\d*)n(?:/(\d+))?(?:-(\d+))?", re.ASCII)
"""A k relative to the number of workers: n, n-1, n/2, 3n/4."""

OWN = "own"
"""The table of a configuration with values for the file's functions; it is no part of a job's configuration."""

GIVEN = {
    "trials": "the contenders are the trials",
    "seed": "experiment.seeds has the seeds",
    "seeds": "experiment.seeds has the seeds",
}
"""The keys of [run] that each cell is given, and why no configuration has them."""

Patch = Mapping[str, Any]
"""Changes of a configuration's tables: SECTION.KEY with its value, a section with changed keys, or a list of tables,
which replaces the list of that name."""

Document = dict[str, Any]
"""A configuration's tables, as in TOML."""


class ExperimentSection(Section, frozen=True):
    """The experiment: its question, mode, seeds and functions."""

    name: str  # the name of the folder in runs/
    question: str = ""  # the title of the report; empty: the name
    mode: str = SIMULATE  # run, simulate or scale; or module:function, a function that returns a cell's row
    base: str | None = None  # a configuration of kofn run, relative to this file; none: the table [base], or kofn run's
    seeds: PositiveInt = 3  # seeds 1 to this number
    baseline: str | None = None  # the contender that the other contenders are compared with
    only: dict[str, tuple[str, ...]] = msgspec.field(
        default_factory=dict
    )  # by axis, or contender, the values to run; without an entry: all
    show: tuple[str, ...] = ()  # the columns in the table; the first one decides. Empty: times, iterations and bytes
    own_columns: str | None = None  # module:function, which returns further columns of a trial
    cells: str | None = None  # module:function, which returns the points to run, given the points of the file
    modules: str | None = None  # the folder of functions and plug-ins; none: this file's folder
    lean: bool = False  # whether the workers' lines and sums, megabytes a training, are removed once they are checked
    notes: str = ""  # a paragraph of the report


class ContenderSection(Section, frozen=True):
    """A contender: an objective for k, and settings."""

    name: str  # in tables and figures
    trial: str  # an objective as in run.trials; k may be relative: fixed:n-1, merge:n/2
    set: dict[str, Any] = msgspec.field(default_factory=dict)  # SECTION.KEY = value, or whole tables


class ClaimSection(Section, frozen=True):
    """A claim, which is shown as yes or NO, with its numbers."""

    text: str  # the claim in words
    column: str | None = None  # a column of the results
    faster: str | None = None  # the contender whose value is smaller
    slower: str | None = None  # the contender whose value is at least `at_least` times as large
    contender: str | None = None  # or the contender whose mean is compared with at_least and at_most
    of: (
        str | tuple[str, ...]
    ) = ()  # the contender by whose value with the same seed it is divided; of several, the best
    at_least: Finite | None = None
    at_most: Finite | None = None
    where: dict[str, Any] = msgspec.field(
        default_factory=dict
    )  # by axis, its value or its values; an axis that is not named must hold in each value
    each: bool = False  # whether each combination of the axes has a verdict of its own
    function: str | None = None  # or module:function, which returns verdicts, given the results

    @property
    def others(self) -> tuple[str, ...]:
        """The contenders of `of`."""
        return (self.of,) if isinstance(self.of, str) else self.of


class TableSection(Section, frozen=True):
    """A table of the terminal and the report, beside the table of `experiment.show`."""

    title: str = ""
    columns: tuple[str, ...] = ()  # columns of the results
    relative: bool = False  # whether the values are ratios to the baseline's with the same seed
    where: dict[str, Any] = msgspec.field(default_factory=dict)  # by axis, its value or its values
    function: str | None = None  # or module:function, which returns a data frame, given the results


class FigureSection(Section, frozen=True):
    """A figure of the report."""

    y: str = ""  # a column of the results
    x: str | None = None  # an axis, or contender; none: the first axis
    lines: str | None = None  # an axis, or contender: a line for each value
    panels: str | None = None  # an axis, or contender: a panel for each value
    relative: bool = False  # whether y is the ratio to the baseline's value with the same seed
    where: dict[str, Any] = msgspec.field(default_factory=dict)  # by axis, its value or its values
    title: str = ""
    function: str | None = None  # or module:function, which returns a matplotlib figure, given the results


class ExperimentDocument(Section, frozen=True):
    """An experiment file."""

    experiment: ExperimentSection
    base: dict[str, Any] = msgspec.field(default_factory=dict)
    axes: dict[str, Any] = msgspec.field(default_factory=dict)
    contender: tuple[ContenderSection, ...] = ()
    claim: tuple[ClaimSection, ...] = ()
    table: tuple[TableSection, ...] = ()
    figure: tuple[FigureSection, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """An axis: by the name of each value, the changes of the configuration."""

    name: str
    values: Mapping[str | int | float | bool, Patch]


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A cell without its seed: a combination of the axes' values, and a contender."""

    axes: Mapping[str, str | int | float | bool]
    contender: str
    document: Document
    """The configuration's tables, without a seed."""
    others: tuple[Document, ...] = ()
    """Configurations of further jobs at the same switch, which have no results."""
    may_fail: bool = False
    """Whether the failure of a process is a result: the trial then has an `early_end`."""

    @property
    def title(self) -> str:
        return ", ".join([*(f"{name} = {value}" for name, value in self.axes.items()), self.contender])

    @property
    def own(self) -> Mapping[str, Any]:
        """The values of the table [own], for the file's functions."""
        own: Mapping[str, Any] = self.document.get(OWN, {})
        return own

    def config(self, seed: int = 1, *, scale: bool = False) -> Config:
        """Return the configuration, whose relative paths are as in the document. ConfigError names the point."""
        try:
            return _config(self.document, seed, scale=scale)
        except ConfigError as error:
            raise ConfigError(f"{self.title}: {error}") from None

    def other_configs(self, seed: int = 1) -> tuple[Config, ...]:
        return tuple(_config(document, seed, scale=False) for document in self.others)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExperimentFile:
    """A checked experiment file; all paths in its configurations are absolute."""

    path: Path
    folder: Path
    """The folder in which relative paths start."""
    document: ExperimentDocument
    base: Document
    axes: tuple[Axis, ...]

    @classmethod
    def load(cls, path: Path, settings: Sequence[str] = (), *, home: Path | None = None, **given: Any) -> Self:
        """Read and check the file. `settings` change the base, and `given` are other values of [experiment]. Relative
        paths start in `home`, by default in the file's folder.

        Raise ConfigError with the key, what must hold and what was found.
        """
        try:
            return cls._of(path, home or path.parent, _read(path), settings, given)
        except ConfigError as error:
            raise error if str(error).startswith(f"{path}: ") else ConfigError(f"{path}: {error}") from None

    @classmethod
    def _of(cls, path: Path, folder: Path, tables: Document, settings: Sequence[str], given: Mapping[str, Any]) -> Self:
        section = tables.get("experiment")
        if isinstance(section, dict):
            section |= {name: value for name, value in given.items() if value is not None}
        try:
            document = msgspec.convert(tables, ExperimentDocument)
        except msgspec.ValidationError as error:
            raise refusal(error, tables, ExperimentDocument) from None
        look_in(str((folder / (document.experiment.modules or ".")).resolve()))
        base = _base(document, folder)
        override(base, settings)
        axes = tuple(_axis(name, values, folder) for name, values in document.axes.items())
        found = cls(path=path, folder=folder, document=document, base=base, axes=axes)
        found._check_settings({setting.partition("=")[0].strip() for setting in settings})
        found._check()
        return found

    @property
    def section(self) -> ExperimentSection:
        return self.document.experiment

    @property
    def modules(self) -> Path:
        """The folder of functions and plug-ins."""
        return (self.folder / (self.section.modules or ".")).resolve()

    @property
    def hooks(self) -> list[str]:
        """The functions that the file names."""
        section, document = self.section, self.document
        named = (section.mode, section.own_columns, section.cells)
        claims = [claim.function for claim in document.claim]
        shown = [table.function for table in document.table] + [figure.function for figure in document.figure]
        return [name for name in (*named, *claims, *shown) if name is not None and name not in MODES]

    @property
    def contenders(self) -> list[str]:
        return [contender.name for contender in self.document.contender]

    @property
    def choices(self) -> dict[str, list[str]]:
        """By axis, and `contender`, the values as text."""
        return {"contender": self.contenders} | {axis.name: [str(name) for name in axis.values] for axis in self.axes}

    @property
    def rows_only(self) -> bool:
        """Whether a cell is a row, not a run with a folder."""
        return self.section.mode not in (RUN, SIMULATE)

    def only(self, chosen: Mapping[str, Sequence[str]]) -> Self:
        """Return the experiment with the chosen values of axes and the chosen contenders; the file's choice remains for
        axes without a new one. ConfigError names a wrong choice."""
        self._check_only(chosen, "--only")
        only = self.section.only | {name: tuple(values) for name, values in chosen.items()}
        section = structs.replace(self.section, only=only)
        return replace(self, document=structs.replace(self.document, experiment=section))

    def points(self) -> list[Point]:
        """Return every chosen combination of the axes' values and contenders; contenders change first."""
        every = list(self._points())
        if self.section.cells is None:
            return every
        changed: list[Point] = HOOKS.load(self.section.cells)(every)
        return changed

    def _points(self) -> Iterator[Point]:
        for values in itertools.product(*(axis.values.items() for axis in self.axes)):
            names = {axis.name: name for axis, (name, _) in zip(self.axes, values, strict=True)}
            if not all(self._chosen(name, value) for name, value in names.items()):
                continue
            world = copy.deepcopy(self.base)
            for _, patch in values:
                patched(world, patch)
            for contender in self.document.contender:
                if not self._chosen("contender", contender.name):
                    continue
                document = copy.deepcopy(world)
                patched(document, absolute(contender.set, self.folder))
                workers = document.get("job", {}).get("workers", Config().job.workers)
                run = document.setdefault("run", {})
                run["trials"] = [objective_of(contender.trial, workers)]
                yield Point(axes=names, contender=contender.name, document=document)

    def _chosen(self, name: str, value: object) -> bool:
        return str(value) in self.section.only.get(name, (str(value),))

    def _check_only(self, chosen: Mapping[str, Sequence[str]], at: str) -> None:
        known = self.choices
        for name, values in chosen.items():
            _known(name, known, at)
            for value in values:
                _known(value, known[name], f"{at} {name}")

    def blame(self, point: Point, check: Callable[[Point], object]) -> None:
        """Call a check of a point. Its ConfigError names the base if the base alone has the same error, and else the
        point."""
        base = Point(axes={}, contender=self.section.base or "[base]", document=self.base)
        try:
            check(point)
        except ConfigError as error:
            culprit = base if str(error) == _error(check, base) else point
            raise ConfigError(f"{culprit.title}: {error}") from None

    def _check_settings(self, named: Set[str]) -> None:
        """Check that no setting of the command line names a key that the file gives to each cell."""
        given = {f"run.{key}": f"--set run.{key} must not be given, because {why}" for key, why in GIVEN.items()}
        for contender in self.document.contender:
            words = f"must not name a key that the contender {contender.name!r} sets"
            given |= {key: f"--set {key} {words}" for key in _keys(contender.set)}
        for axis in self.axes:
            words = f"must not name an axis: --only {axis.name}=VALUE chooses values"
            for key in {key for patch in axis.values.values() for key in _keys(patch)}:
                other = f"must not name a key that the axis {axis.name!r} sets"
                given[key] = f"--set {key} {words if key == axis.name else other}"
        for key in sorted(named & given.keys()):
            raise ConfigError(given[key])

    def _check(self) -> None:
        """Check names across tables, and every configuration."""
        section, names = self.section, self.contenders
        if section.mode not in MODES and MODULE.fullmatch(section.mode) is None:
            meant = did_you_mean(section.mode, MODES)
            raise ConfigError(
                f"experiment.mode must be {', '.join(MODES)} or module:function, got {section.mode!r}{meant}"
            )
        if not re.fullmatch(r"[\w][\w .-]*", section.name):
            raise ConfigError(
                f"experiment.name must be letters, digits, '-', '_', '.' and spaces, got {section.name!r}"
            )
        if not names:
            raise ConfigError("[[contender]] must have at least one entry, got none")
        if len({*names}) < len(names):
            raise ConfigError(f"contender.name must differ from entry to entry, got {', '.join(names)}")
        for name in self.hooks:
            HOOKS.load(name)
        _known(section.baseline, names, "experiment.baseline")
        self._check_only(section.only, "experiment.only")
        columns = {"contender": names} | {axis.name: list(axis.values) for axis in self.axes}
        for number, claim in enumerate(self.document.claim):
            _check_claim(claim, names, columns, f"claim[{number}]")
        for number, figure in enumerate(self.document.figure):
            self._check_figure(figure, columns, f"figure[{number}]")
        for number, table in enumerate(self.document.table):
            _check_where(table.where, columns, f"table[{number}].where")
        relative = [table.relative for table in self.document.table] + [
            figure.relative for figure in self.document.figure
        ]
        if section.baseline is None and any(relative):
            raise ConfigError("relative needs experiment.baseline, got none")
        self._check_columns()
        for point in self.points():
            self.blame(point, lambda point: _config(point.document, 1, scale=self.rows_only))

    def _check_columns(self) -> None:
        """Check the columns of tables, claims and figures, unless functions of the file give columns."""
        section, document = self.section, self.document
        if section.own_columns is not None or section.mode not in MODES:
            return
        known = (scaled_trial() if section.mode == SCALE else TRIAL).numbers
        shown: dict[str, tuple[str | None, ...]] = {"experiment.show": section.show}
        shown |= {f"claim[{number}].column": (claim.column,) for number, claim in enumerate(document.claim)}
        shown |= {f"table[{number}].columns": table.columns for number, table in enumerate(document.table)}
        shown |= {f"figure[{number}].y": (figure.y or None,) for number, figure in enumerate(document.figure)}
        for at, columns in shown.items():
            for column in columns:
                _known(column, known, at)

    def _check_figure(self, figure: FigureSection, columns: Mapping[str, Sequence[Any]], at: str) -> None:
        for key in ("x", "lines", "panels"):
            _known(getattr(figure, key), columns, f"{at}.{key}")
        _check_where(figure.where, columns, f"{at}.where")
        if figure.function is not None:
            return
        if not figure.y:
            raise ConfigError(f"{at} must have y or a function, got none")
        if len(further := self._further(figure)) > (figure.panels is None):
            raise ConfigError(f"{at}: {', '.join(further)} must be x, lines, panels or one value by where")

    def _further(self, figure: FigureSection) -> list[str]:
        """Return the columns with several values that are neither x nor lines nor panels of a figure."""
        values = {axis.name: len(axis.values) for axis in self.axes} | {"contender": len(self.contenders)}
        x = figure.x or next(iter(values))
        lines = figure.lines or (None if "contender" in (x, figure.panels) else "contender")
        many = [
            name
            for name, count in values.items()
            if (_several(figure.where[name]) if name in figure.where else count > 1)
        ]
        return [name for name in many if name not in (x, lines, figure.panels)]


def _several(given: Any) -> bool:
    return isinstance(given, list) and len(given) > 1


def objective_of(text: str, workers: int) -> str:
    """Return an objective whose k may be relative to the number of workers.

    >>> objective_of("fixed:n-1", 8), objective_of("merge:3n/4", 8), objective_of("progress", 8)
    ('fixed:7', 'merge:6', 'progress')
    """
    name, colon, k = text.partition(":")
    found = RELATIVE_K.fullmatch(k)
    if not colon or found is None or not isinstance(workers, int):
        return text
    times, part, less = found.groups()
    return f"{name}:{max(int(times or 1) * workers // int(part or 1) - int(less or 0), 1)}"


def patched(document: Document, patch: Patch) -> None:
    """Change a configuration's tables."""
    for name, value in patch.items():
        section, dot, key = name.partition(".")
        changed = {section: {key: value}} if dot else {name: value}
        override(document, copy.deepcopy(changed))


def absolute(patch: Patch, folder: Path) -> Patch:
    """Return changes with absolute paths; relative paths start in `folder`."""
    return mapped_paths(patch, lambda path: str(Path(os.path.abspath(folder / path))))


def mapped_paths(patch: Patch, change: Callable[[str], str], only: Sequence[str] = PATHS) -> Document:
    """Return changes in which each path of a configuration is what `change` returns for it; `only` has the paths'
    keys."""
    found = copy.deepcopy(dict(patch))
    for name in only:
        section, _, key = name.partition(".")
        for table, entry in ((found, name), (found.get(section), key)):
            if isinstance(table, dict) and isinstance(table.get(entry), str):
                table[entry] = change(table[entry])
    return found


def _read(path: Path) -> Document:
    try:
        return tomllib.loads(path.read_text())
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not TOML: {error}") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: not TOML: {error}") from None


def _base(document: ExperimentDocument, folder: Path) -> Document:
    """Return the configuration that axes and contenders change."""
    given = document.experiment.base
    if given is not None and document.base:
        raise ConfigError("experiment.base and the table [base] must not both be given")
    if given is None and not document.base:
        base = _read(DEFAULT_CONFIG)
        for key in ("trials", "seed", "alone"):
            base["run"].pop(key, None)
        return base
    path = None if given is None else folder / given
    base = dict(absolute(document.base, folder)) if path is None else dict(absolute(_read(path), path.parent))
    run = base.get("run")
    for key, why in GIVEN.items():
        if isinstance(run, dict) and key in run:
            raise ConfigError(f"{path or '[base]'}: run.{key} must not be given here, because {why}")
    if path is not None and path.parent != folder:
        own = _config(base, 1, scale=True).at_home(path.parent).job.modules
        base["job"] = {**base.get("job", {}), **({"modules": own} if own else {})}
    return base


def _axis(name: str, given: Any, folder: Path) -> Axis:
    """Return an axis: a list of values of SECTION.KEY, or changes by name."""
    if isinstance(given, list):
        section, _, key = name.partition(".")
        if name.count(".") != 1:
            raise ConfigError(f"axes.{name} must be named SECTION.KEY if it is a list of values, got {name!r}")
        if isinstance(getattr(Config(), section, None), tuple):
            raise ConfigError(f"axes.{name} must not be a list of values, got {given}{_remedy(section, key, given)}")
        if not given:
            raise ConfigError(f"axes.{name} must have at least one value, got none")
        return Axis(name=name, values={_label(value): absolute({name: value}, folder) for value in given})
    if isinstance(given, dict) and given:
        numbers = all(re.fullmatch(r"0|[1-9][0-9]*", label) for label in given)  # numbers along a figure's axis
        values: dict[str | int | float | bool, Patch] = {
            int(label) if numbers else label: _overlay(name, label, value, folder) for label, value in given.items()
        }
        return Axis(name=name, values=values)
    raise ConfigError(f'axes."{name}" must be a list of values, or a table of named changes, got {given!r}')


def _label(value: Any) -> str | int | float | bool:
    if isinstance(value, str | int | float | bool):
        return value
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


def _overlay(axis: str, label: str, given: Any, folder: Path) -> Patch:
    """Return the changes of a named value: a table, or the tables of a file, whose paths start in the file's folder."""
    if isinstance(given, str):
        path = folder / given
        return absolute(_read(path), path.parent)
    if not isinstance(given, dict):
        raise ConfigError(f"axes.{axis}.{label} must be a table or a file, got {given!r}{_remedy(axis, label, given)}")
    return absolute(given, folder)


def _remedy(section: str, key: str, given: Any) -> str:
    """Return how to write an axis of a section's values; empty if there is no such section."""
    default = getattr(Config(), section, None)
    if isinstance(default, tuple):
        example = f"{section} = {{ a = {{ {section} = [{{ ... }}] }}, b = {{ {section} = [] }} }}"
        return f": [[{section}]] is a list of tables, so its axis has named changes, {example} for example"
    quoted = isinstance(given, list) and (section == OWN or default is not None)
    return f': the key of a list of values must be quoted, "{section}.{key}" = {given}' if quoted else ""


def _config(document: Document, seed: int, *, scale: bool) -> Config:
    tables = copy.deepcopy(document)
    tables.pop(OWN, None)
    override(tables, {"run": {"seed": seed, "seeds": 1}})
    return Config.of(tables, scale=scale)


def _error(check: Callable[[Point], object], point: Point) -> str:
    """Return the ConfigError of a check of a point; empty if there is none."""
    try:
        check(point)
    except ConfigError as error:
        return str(error)
    return ""


def _keys(patch: Patch) -> Iterator[str]:
    """Yield each SECTION.KEY, and each list of tables, that changes name."""
    for name, value in patch.items():
        yield from (f"{name}.{key}" for key in value) if isinstance(value, Mapping) and "." not in name else (name,)


def _check_claim(claim: ClaimSection, names: Sequence[str], columns: Mapping[str, Sequence[Any]], at: str) -> None:
    for key in ("faster", "slower", "contender"):
        _known(getattr(claim, key), names, f"{at}.{key}")
    for name in claim.others:
        _known(name, names, f"{at}.of")
    _check_where(claim.where, columns, f"{at}.where")
    if claim.function is not None:
        return
    if claim.column is None:
        raise ConfigError(f"{at} must have a column or a function, got none")
    pair, single = claim.faster is not None and claim.slower is not None, claim.contender is not None
    if pair == single:
        raise ConfigError(f"{at} must have faster and slower, or contender")
    if pair and (claim.at_least is None or claim.at_most is not None):
        raise ConfigError(
            f"{at}.at_least must be the least ratio of the slower's value to the faster's, and at_most none"
        )
    if single and claim.at_least is None and claim.at_most is None:
        raise ConfigError(f"{at} must have at_least or at_most, got none")
    if claim.others and not single:
        raise ConfigError(f"{at}.of needs {at}.contender, got none")


def _check_where(where: Mapping[str, Any], columns: Mapping[str, Sequence[Any]], at: str) -> None:
    for name, value in where.items():
        _known(name, columns, at)
        for entry in value if isinstance(value, list) else [value]:
            _known(entry, columns[name], f"{at}.{name}")


def _known(name: Any, known: Any, at: str) -> None:
    """Raise ConfigError unless the name is None or known."""
    if name is not None and name not in known:
        words = [str(entry) for entry in known]
        raise ConfigError(f"{at} must be one of {', '.join(words)}, got {name!r}{did_you_mean(str(name), words)}")
