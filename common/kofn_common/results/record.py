"""run.json: the jobs and trials of a run, how many trials ended, and why the run ended early."""

from pathlib import Path

import msgspec

from kofn_common.config.errors import ConfigError
from kofn_common.results.errors import ResultsError
from kofn_common.results.files import write_synced
from kofn_common.results.provenance import Provenance

FILE = "run.json"

SIMULATED = "simulated"
"""The driver of a run in virtual time."""

KILLED = "kofn run could not say why: it was killed (SIGKILL), or its disk was full"
"""The reason in the record of a run that could not write why it ended."""


class MachineRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A machine of a laboratory during a run."""

    host: str
    nodes: tuple[str, ...]  # the hosts and switches of the topology that were there
    kernel: str
    cores: int
    ahead_s: float  # by how much its clock was ahead of the clock of `kofn run`
    monotonic_ahead_s: float  # the same of its monotonic clock
    within_s: float  # the offsets are known to be within this of the truth
    drift_s: float  # by how much more than that an offset during the run differed

    @property
    def row(self) -> tuple[str, str]:
        """The machine in a table of the report."""
        clock = f"clock {self.ahead_s:+.3f} s, known within {1e3 * (self.within_s + self.drift_s):.1f} ms"
        return self.host, f"{', '.join(self.nodes)}; {self.kernel}, {self.cores} cores; {clock}"


class RunRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The content of run.json: enough to read a run folder again."""

    started: str  # local time
    target: str
    driver: str  # the driver in use once the network is up
    jobs: tuple[tuple[int, int], ...]  # (id, workers)
    trials: tuple[tuple[str, str], ...]  # (objective, folder)
    finished: int = 0  # number of trials, from the first one on, that ended
    ended: str = (
        ""  # why the run ended before all trials; empty: all trials ended, the run goes on, or SIGKILL ended it
    )
    seeds: tuple[int, ...] = ()  # seeds of the runs in folders seed-N, which have the trials; empty: this is one run
    load: str = ""  # a remark about other processes that used the cores when the run began, or while the costs of a
    # simulation were measured; empty: none did
    provenance: Provenance = Provenance()
    machines: tuple[MachineRecord, ...] = ()  # the machines of a laboratory; empty: this machine

    @property
    def rows(self) -> list[tuple[str, str]]:
        """The run's origin, for a table of the report."""
        return [*self.provenance.rows(), *(machine.row for machine in self.machines)]

    @property
    def early_end(self) -> str:
        """The reason why some trials are not finished; empty if all are."""
        return "" if self.finished == len(self.trials) else self.ended or KILLED

    def write(self, folder: Path) -> None:
        """Write the record in one step."""
        write_synced(folder / FILE, msgspec.json.format(msgspec.json.encode(self)) + b"\n")


def read_record(path: Path) -> RunRecord:
    """Read the record in a run's folder; ConfigError without one, ResultsError if it is damaged."""
    try:
        return msgspec.json.decode((path / FILE).read_bytes(), type=RunRecord)
    except OSError as error:
        raise ConfigError(f"{path} is no run's folder: {FILE}: {error.strerror}") from error
    except ValueError as error:
        raise ResultsError(f"{path / FILE}: {error}") from error
