"""Results of an experiment file that a test makes up."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd

from kofn.experiments.experiment_file import ExperimentFile
from kofn.experiments.reader import Experiment, frame

EXAMPLES = Path(__file__).parents[2] / "examples" / "experiments"


class GivenResults(Experiment):
    """An experiment whose finished trials are `rows`; a row without a seed is of seed 1."""

    def __init__(self, path: Path, rows: Sequence[Mapping[str, object]]) -> None:
        self.file = ExperimentFile.load(path)
        self._path = path.parent
        self.given = frame([{"seed": 1, **row} for row in rows])

    @property
    def summary(self) -> pd.DataFrame:
        return self.given
