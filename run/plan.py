"""What a command line and its configurations together ask for."""

import shutil
from dataclasses import dataclass
from pathlib import Path

from kofn.config.schema import Config
from kofn.results.folder import RunFolder
from kofn.run.jobs import JobPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPlan:
    """A run."""

    jobs: tuple[JobPlan, ...]
    folder: Path
    as_json: bool
    quiet: bool
    """Nothing but what happens and why nothing moves."""
    page_port: int | None = None
    """Of the live page; 0: any that is free, None: no page."""
    check: bool = True
    """Measure the network before the first trial."""
    record: Path | None = None
    """Where the last trial's blocking is written to."""

    @property
    def configs(self) -> list[Config]:
        """Every job's, with what all share."""
        return [job.config for job in self.jobs]

    @property
    def shared(self) -> Config:
        """The first job's: its run and network sections are everyone's."""
        return self.jobs[0].config


def copy_given(plan: RunPlan, folder: RunFolder) -> None:
    """Every job's configuration, as it was given and as its processes read it."""
    for job, planned in zip(folder.jobs, plan.jobs, strict=True):
        shutil.copyfile(planned.source, job.config)
    folder.write_effective(plan.configs)
