"""The folder of an experiment, which repeats it elsewhere: the file, what it names, versions, machine and results.

OUT/experiment.toml   the experiment file, with its base and overlays inside; its paths are in OUT/inputs
OUT/given.toml        the file as it was given
OUT/inputs/           plug-ins and scripts, gradients, traces and topologies that file and configurations name
OUT/versions.txt      the versions of all Python packages
OUT/README.md         the command that repeats the experiment
OUT/costs/            of a simulation, CPU times of a worker's steps
OUT/cells/            the cells (cells.py)
OUT/results.csv, experiment.json, report.html, figures/
"""

import filecmp
import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

import msgspec

from kofn.experiments.cells import cells_of
from kofn.experiments.experiment_file import Axis, ExperimentFile, Patch, mapped_paths
from kofn.experiments.reader import EXPERIMENT, Experiment
from kofn_common.config.dump import tables_to_toml
from kofn_common.config.errors import ConfigError
from kofn_common.results.provenance import Provenance

INPUTS, MODULES = "inputs", "modules"

SOURCES = {".py", ".p4", ".json", ".toml", ".txtpb", ".txt", ".csv", ".c", ".h"}
"""The suffixes of the files that are copied from a folder of plug-ins."""

FILES = ("model.replay", "model.trace", "network.topology")
"""Keys whose files, or folders of files, are copied as they are."""

SOURCES_MOST, SOURCES_BYTES = 500, 20_000_000
"""The most files, and the most bytes, of a folder of plug-ins."""


@dataclass(slots=True)
class Inputs:
    """The copies of what an experiment names, in OUT/inputs; `taken` has each original's place there."""

    out: Path
    taken: dict[Path, str] = field(default_factory=dict)

    def take(self, path: str | Path, *, sources: bool = False) -> str:
        """Copy a file or a folder, and return its place relative to OUT. With `sources`, copy the sources in the
        folder."""
        origin = Path(path).resolve()
        if origin in self.taken:
            return self.taken[origin]
        if origin.is_relative_to(self.out.resolve()):
            return str(origin.relative_to(self.out.resolve()))
        if not origin.exists():
            raise ConfigError(f"{path} must exist, got no such file")
        name, number = origin.name, 1
        while f"{INPUTS}/{name}" in self.taken.values():
            number += 1
            name = f"{origin.name}-{number}"
        self.taken[origin] = f"{INPUTS}/{name}"
        target = self.out / INPUTS / name
        files = _sources(origin) if sources else _files(origin)
        for file in files:
            self._copy(file, target if origin.is_file() else target / file.relative_to(origin))
        return self.taken[origin]

    def modules(self, folder: Path) -> str:
        """Copy the modules in a folder that have been imported, with the files of the same names beside them; return
        the place of the copies relative to OUT.

        The folder may be one with much else in it, so it is not copied as a whole.
        """
        if folder.is_relative_to(self.out.resolve()):
            return str(folder.relative_to(self.out.resolve()))
        modules = {name: getattr(module, "__file__", None) for name, module in list(sys.modules.items())}
        inside = [Path(path) for name, path in modules.items() if path and _is_plugin(name, Path(path), folder)]
        beside = [
            other
            for path in inside
            for place in (path.parent, path.parent / "build")
            for other in place.glob(f"{path.stem}.*")
            if other.suffix in SOURCES
        ]
        for path in dict.fromkeys([*inside, *beside]):
            if path.resolve().is_relative_to(folder):
                self._copy(path, self.out / INPUTS / MODULES / path.relative_to(folder))
        return f"{INPUTS}/{MODULES}"

    def script(self, path: str | Path) -> str:
        """Copy a script with the other sources of its folder; return its place relative to OUT."""
        return f"{self.take(Path(path).parent, sources=True)}/{Path(path).name}"

    def _copy(self, source: Path, target: Path) -> None:
        """Copy a file. Raise ConfigError if results were made with another content of the file."""
        if target.exists() and not filecmp.cmp(source, target, shallow=False):
            raise ConfigError(
                f"{target} is from an earlier {source.name}, and the results may depend on it: choose another --out"
            )
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)


def prepare(file: ExperimentFile, out: Path) -> ExperimentFile:
    """Write the experiment and all that it names into its folder; return the experiment file there. Its plug-ins have
    been loaded.

    Raise ConfigError if the folder has other content, or a file is missing or differs from the copy there.
    """
    check_folder(file, out)
    out.mkdir(parents=True, exist_ok=True)
    inputs = Inputs(out)
    document = msgspec.to_builtins(file.document)
    section = _given(document["experiment"])
    section.pop("base", None)
    section.pop("modules", None)
    if file.hooks or _names_modules(file):
        section["modules"] = inputs.modules(file.modules)
    tables: dict[str, Any] = {"experiment": section, "base": _moved(file.base, inputs)}
    tables["axes"] = {axis.name: _values(axis, inputs) for axis in file.axes}
    tables["contender"] = [
        {"name": each.name, "trial": each.trial, "set": _moved(each.set, inputs, file.folder)}
        for each in file.document.contender
    ]
    for name in ("claim", "table", "figure"):
        tables[name] = [_given(entry) for entry in document[name]]
    checked = _checked(tables, out)
    if file.path.resolve() != (out / EXPERIMENT).resolve():
        given = file.path.with_name("given.toml") if file.path.name == EXPERIMENT else file.path
        shutil.copyfile(given if given.exists() else file.path, out / "given.toml")
    os.replace(checked, out / EXPERIMENT)
    (out / "versions.txt").write_text("".join(f"{line}\n" for line in _versions()))
    (out / "README.md").write_text(_readme(file, Provenance.here()))
    return ExperimentFile.load(out / EXPERIMENT)


def check_folder(file: ExperimentFile, out: Path) -> None:
    """Raise ConfigError if a folder has other content than this experiment."""
    if not out.exists() or not any(out.iterdir()):
        return
    if not (out / EXPERIMENT).exists():
        raise ConfigError(f"{out} must be empty or an experiment's: choose another --out, nothing is overwritten")
    name = Experiment(out).file.section.name
    if name != file.section.name:
        raise ConfigError(
            f"{out} is the folder of the experiment {name!r}, got {file.section.name!r}: choose another --out"
        )


def _checked(tables: Mapping[str, Any], out: Path) -> Path:
    """Write the file under another name, and return its path. Raise ConfigError if a finished cell has another
    configuration; the folder's file is then as before."""
    path = out / f".new-{EXPERIMENT}"
    path.write_text(tables_to_toml(tables))
    try:
        file = ExperimentFile.load(path)
        for cell in () if file.rows_only else cells_of(file, out):
            cell.stored()
    except ConfigError:
        path.unlink()
        raise
    return path


def _is_plugin(name: str, path: Path, folder: Path) -> bool:
    """Return whether a module is a user's, and lies in a folder of plug-ins: `name` as it is imported from there."""
    top = name.partition(".")[0]
    there = (folder / f"{top}.py").exists() or (folder / top).is_dir()
    return there and path.is_relative_to(folder) and not top.startswith("kofn")


def _given(table: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys of a table that have a value."""
    return {key: value for key, value in table.items() if value not in (None, "", [], {}, ())}


def _names_modules(file: ExperimentFile) -> bool:
    """Return whether a configuration names plug-ins without a folder."""
    return any(
        config.job.modules is None and config.at_home(file.modules).job.modules is not None
        for config in (point.config(scale=file.rows_only) for point in file.points())
    )


def _moved(patch: Patch, inputs: Inputs, folder: Path | None = None) -> dict[str, Any]:
    """Return changes whose paths are copies in the experiment's folder; relative paths start in `folder`."""

    def origin(path: str) -> Path:
        return Path(path) if folder is None else folder / path

    found = mapped_paths(patch, lambda path: inputs.take(origin(path), sources=True), only=("job.modules",))
    found = mapped_paths(found, lambda path: inputs.script(origin(path)), only=("torch.script",))
    return mapped_paths(found, lambda path: inputs.take(origin(path)), only=FILES)


def _values(axis: Axis, inputs: Inputs) -> list[Any] | dict[str, Any]:
    """Return an axis as in a file: the values of its key, or changes by name."""
    moved = {str(name): _moved(patch, inputs) for name, patch in axis.values.items()}
    listed = "." in axis.name and all(list(patch) == [axis.name] for patch in moved.values())
    return [patch[axis.name] for patch in moved.values()] if listed else moved


def _files(path: Path) -> Iterator[Path]:
    if path.is_file():
        yield path
    else:
        yield from (file for file in sorted(path.rglob("*")) if file.is_file())


def _sources(folder: Path) -> list[Path]:
    """Return the sources in a folder and below; links that lead outside, hidden folders, runs and caches are left
    out."""
    found, size = [], 0
    for path in sorted(folder.rglob("*")):
        parts = path.relative_to(folder).parts
        if any(part.startswith(".") or part in ("__pycache__", "runs", "node_modules") for part in parts):
            continue
        if path.suffix not in SOURCES or not path.is_file() or not path.resolve().is_relative_to(folder):
            continue
        found.append(path)
        size += path.stat().st_size
        if len(found) > SOURCES_MOST or size > SOURCES_BYTES:
            raise ConfigError(
                f"{folder} must be a folder of plug-ins, with at most {SOURCES_MOST} sources of together"
                f" {SOURCES_BYTES // 10**6} MB, got more: move the plug-ins into a folder of their own"
            )
    return found


def _versions() -> list[str]:
    return sorted({f"{found.metadata['Name']}=={found.version}" for found in distributions()}, key=str.lower)


def _readme(file: ExperimentFile, here: Provenance) -> str:
    section = file.section
    rows = "\n".join(f"- {label}: {value}" for label, value in here.rows())
    return f"""# {section.question or section.name}

The results of a kofn experiment. `report.html` has the answer, `results.csv` a row for each training, and
`experiment.toml` the question.

To repeat the experiment, in a checkout of kofn at the commit below:

    make setup
    .venv/bin/kofn experiment PATH/OF/THIS/FOLDER

The command writes a new folder, and compares its numbers with the numbers here. If this experiment is not finished, the
command finishes it instead.

{rows}
- packages: versions.txt
"""
