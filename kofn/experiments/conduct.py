"""The runs of `kofn compare`: the matrix of runs is run, or its results are read."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Console

from kofn.experiments.matrix import CarryOut, Cell, CellResult, run_cells
from kofn.run.errors import InterruptedRun
from kofn_common.config.errors import ConfigError
from kofn_common.results.folder import point_latest


def check_results(out: Path | None, of: str) -> Path:
    """Return the folder that --report-only reads; `of` names the folder's content. Raise ConfigError if the folder is
    missing."""
    if out is None or not out.is_dir():
        raise ConfigError(f"--report-only needs --out with the folder of {of}, not {out or 'none'}")
    return out


def gone_through(matrix: Sequence[Cell], folder: Path, carry_out: CarryOut, console: Console) -> Iterator[CellResult]:
    """Run all unfinished cells; the error of an interruption tells how to continue."""
    try:
        yield from run_cells(matrix, carry_out, console)
    except InterruptedRun as error:
        raise InterruptedRun(f"{error}\nthe same command with --out {folder} continues") from None
    point_latest(folder)
