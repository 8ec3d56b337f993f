"""`kofn.experiment`: an experiment for a script or a notebook."""

import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from rich.console import Console

from kofn.experiments.artefact import prepare
from kofn.experiments.cells import cells_of
from kofn.experiments.engine import TaskEngine
from kofn.experiments.experiment_file import ExperimentFile
from kofn.experiments.modes import carry_out, check, check_here
from kofn.experiments.outcome import conclude
from kofn.experiments.reader import Experiment
from kofn.run.errors import RunError
from kofn.run.lab.lab_file import Lab
from kofn.run.library import Progress, in_thread
from kofn_common.config.dump import tables_to_toml


def experiment(
    file: Path | str | Mapping[str, Any],
    *,
    out: Path | str | None = None,
    mode: str | None = None,
    seeds: int | None = None,
    only: Mapping[str, Sequence[object]] | None = None,
    processes: int = 1,
    lab: Path | str | None = None,
    progress: Progress = True,
) -> Experiment:
    """Carry out an experiment, as the command `kofn experiment` does, and read the results.

    `file` is an experiment file, or its tables as a dict, whose relative paths start in the working folder. `out` is
    the folder for the results, by default runs/NAME; cells that are finished in it are not repeated. `mode` and `seeds`
    replace those of the file. `only` has, by axis or `contender`, the values to run. `processes` is the number of cells
    at a time, unless they are run for real; with more than one, a script needs `if __name__ == "__main__":` around the
    call. `lab` and `progress` are those of kofn.run.

    Raise ConfigError for a wrong file before anything starts, and RunError if a cell fails. Ctrl-C keeps the finished
    cells, and the same call goes on.
    """
    with ExitStack() as open_:
        if isinstance(file, Mapping):
            folder = open_.enter_context(tempfile.TemporaryDirectory(prefix="kofn-"))
            path = Path(folder) / "experiment.toml"
            path.write_text(tables_to_toml(file))
            found = ExperimentFile.load(path, home=Path.cwd(), mode=mode, seeds=seeds)
        else:
            found = ExperimentFile.load(Path(file), mode=mode, seeds=seeds)
        found = found.only({name: [str(value) for value in values] for name, values in (only or {}).items()})
        place = Path("runs") / found.section.name.replace(" ", "-") if out is None else Path(out)
        cells = cells_of(found, place)
        check(found, cells)
        machines = None if lab is None else Lab.load(Path(lab))
        check_here(found, cells, machines)
        found = prepare(found, place)
    engine = TaskEngine(processes=processes, lab=machines)
    in_thread(lambda console: _go_through(found, place, engine, console), progress)
    return Experiment(place)


def _go_through(file: ExperimentFile, folder: Path, engine: TaskEngine, console: Console) -> None:
    left = Experiment(folder).left
    failed = [result for result in carry_out(file, folder, left, console, engine) if not result.ok]
    conclude(folder, console, as_json=False, failed=[f"{result.cell.title}: {result.error}" for result in failed])
    if failed:
        raise RunError(f"{failed[0].cell.title}: {failed[0].error}; {len(failed)} cells failed")
