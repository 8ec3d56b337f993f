"""The TOML file's [[event]], [[link]] and [[cpu]]: interventions during the run."""

from collections.abc import Sequence
from typing import Annotated

from msgspec import Meta

from kofn_common.config.errors import ConfigError
from kofn_common.config.job import JobSection
from kofn_common.config.objectives import check_objective
from kofn_common.config.section import Mbps, NotNegative, PositiveInt, Section, WholeNumber
from kofn_common.config.suggestion import did_you_mean

ACTIONS = ("kill", "start", "objective")


class EventSection(Section, frozen=True):
    """An intervention during the run: exactly one of kill, start and objective.

    If a worker's first event is a start, the worker joins late: it does not start with the others
    (see job.start_workers).
    """

    at_iteration: PositiveInt  # the event comes once any worker has finished this iteration
    kill: str | None = None  # "switch" (of a tree: "root", "leaf-R"), "controller" or "worker-R": SIGKILL
    start: str | None = None  # the same names: restart a killed process, or start a late worker
    after_s: NotNegative = 0.0  # additional delay
    objective: str | None = None  # a new objective, as `kofn set-k` takes it

    def actions(self) -> dict[str, str]:
        """Return those of kill, start and objective that are given, with their values."""
        return {name: value for name in ACTIONS if (value := getattr(self, name)) is not None}

    def check(self, workers: int, control_plane: Sequence[str]) -> None:
        """Check that the event is one action on an existing process."""
        given = self.actions()
        if len(given) != 1:
            raise ConfigError(f"event must have exactly one of {', '.join(ACTIONS)}, got {', '.join(given) or 'none'}")
        if self.objective is not None:
            check_objective(self.objective, workers, "event.objective")
            return
        action, name = given.popitem()
        processes = [*control_plane, *(f"worker-{rank}" for rank in range(workers))]
        if name not in processes:
            meant = did_you_mean(name, processes)
            raise ConfigError(f"event.{action} must be one of {', '.join(processes)}, got {name!r}{meant}")


class LinkSection(Section, frozen=True):
    """A new rate of some workers' links, in both directions, until a later entry for the same worker."""

    workers: tuple[WholeNumber, ...]  # as straggler.workers
    mbps: Mbps
    at_iteration: PositiveInt  # the rate changes once any worker has finished this iteration
    after_s: NotNegative = 0.0  # additional delay, for example into the middle of an iteration

    def check(self, job: JobSection) -> None:
        """Check that the entry names workers of the job."""
        job.check_ranks(self.workers, "link.workers")
        if not self.workers:
            raise ConfigError("link.workers must have one or more numbers, got none")


class CpuSection(Section, frozen=True):
    """A limited processor for some workers' processes, until a later entry for the same worker.

    The kernel (a cgroup's cpu.max, or cpu.cfs_quota_us) stops the processes once they have used their share of 20 ms.
    If no cgroup can be made, kofn binds the worker to one processor, and runs a load of the right weight beside it.
    Only `kofn run` limits processors; the effect can be recorded (--record-stragglers) and then simulated.
    """

    workers: tuple[WholeNumber, ...]
    share: Annotated[float, Meta(ge=0.05, le=1)]  # share of one processor; 1: no limit
    at_iteration: WholeNumber = 0  # begin: once any worker has finished this iteration; 0: the start
    after_s: NotNegative = 0.0  # additional delay

    def check(self, job: JobSection) -> None:
        """Check that the entry names workers of the job."""
        job.check_ranks(self.workers, "cpu.workers")
        if not self.workers:
            raise ConfigError("cpu.workers must have one or more numbers, got none")
