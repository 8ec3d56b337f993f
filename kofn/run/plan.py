"""What a command line and its configurations together ask for."""

import shutil
from dataclasses import dataclass
from pathlib import Path

from kofn.config.schema import Config
from kofn.results.folder import RunFolder, default_path, point_latest
from kofn.run.jobs import JobPlan, plan_jobs
from kofn.run.stragglers import check_record

DEFAULT_CONFIG = Path(__file__).parents[1] / "config" / "default.toml"


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


def make_plan(
    *sources: Path,
    target: str | None = None,
    driver: str | None = None,
    out: Path | None = None,
    objectives: tuple[str, ...] = (),
    settings: tuple[str, ...] = (),
    record: Path | None = None,
    as_json: bool = False,
    quiet: bool = False,
) -> RunPlan:
    """Read the configurations and let the command line override them; ConfigError if anything is wrong."""
    jobs = plan_jobs(
        sources or (DEFAULT_CONFIG,), target=target, driver=driver, objectives=objectives, settings=settings
    )
    if record is not None:
        check_record(record, jobs=len(jobs), seeds=jobs[0].config.run.seeds)
    folder = out or default_path(jobs[0].config.run.name)
    return RunPlan(jobs=jobs, folder=folder, record=record, as_json=as_json, quiet=quiet)


def prepare(plan: RunPlan, topology: str) -> RunFolder:
    """Make the run folder with everything that says what is run; ConfigError if it cannot be had."""
    folder = RunFolder.create(plan.folder, plan.shared.run.trials, [config.job.id for config in plan.configs])
    copy_given(plan, folder)
    folder.topology.write_text(topology)
    folder.write_record(plan.configs, driver=plan.shared.network.driver)
    point_latest(plan.folder)
    return folder


def copy_given(plan: RunPlan, folder: RunFolder) -> None:
    """Every job's configuration, as it was given and as its processes read it."""
    for job, planned in zip(folder.jobs, plan.jobs, strict=True):
        shutil.copyfile(planned.source, job.config)
    folder.write_effective(plan.configs)
