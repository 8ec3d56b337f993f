"""run.json: what a run is, how far it came, and why it ended."""

from pathlib import Path

import msgspec

from kofn.config.errors import ConfigError
from kofn.results.errors import ResultsError
from kofn.results.provenance import Provenance

FILE = "run.json"

KILLED = "kofn run could not say why: it was killed (SIGKILL), or its disk was full"
"""What is known of a run that could not say why it ended."""


class RunRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What run.json holds: enough to read a run folder again."""

    started: str  # local time
    target: str
    driver: str  # the one in use once the network is up
    jobs: tuple[tuple[int, int], ...]  # (id, workers)
    trials: tuple[tuple[str, str], ...]  # (objective, folder)
    finished: int = 0  # so many of them, from the first one on, came to their end
    ended: str = ""  # why it ended before the others did; empty: it did not, or was killed with SIGKILL, or goes on
    seeds: tuple[int, ...] = ()  # of as many runs in folders seed-N, which have the trials; empty: it is one run
    provenance: Provenance = Provenance()

    @property
    def early_end(self) -> str:
        """Why the trials that are not finished are not; empty where all are."""
        return "" if self.finished == len(self.trials) else self.ended or KILLED

    def write(self, folder: Path) -> None:
        """In one step: whoever reads it finds the old one or the new one."""
        temporary = folder / f".{FILE}"
        temporary.write_bytes(msgspec.json.format(msgspec.json.encode(self)) + b"\n")
        temporary.replace(folder / FILE)


def read_record(path: Path) -> RunRecord:
    """Of the run in a folder; ConfigError where there is none, ResultsError where it is damaged."""
    try:
        return msgspec.json.decode((path / FILE).read_bytes(), type=RunRecord)
    except OSError as error:
        raise ConfigError(f"{path} is no run's folder: {FILE}: {error.strerror}") from error
    except msgspec.DecodeError as error:
        raise ResultsError(f"{path / FILE}: {error}") from error
