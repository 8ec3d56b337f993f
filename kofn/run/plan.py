"""The run that a command line and its configurations ask for."""

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from kofn.run.jobs import JobPlan, plan_jobs
from kofn.run.lab.lab_file import Lab
from kofn.run.stragglers import check_record
from kofn_common.config.schema import Config
from kofn_common.places import folder_of
from kofn_common.results.folder import RunFolder, default_path, point_latest
from kofn_controller.p4runtime.data_plane import DataPlane, data_plane_of

DEFAULT_CONFIG = folder_of("kofn_common") / "config" / "default.toml"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPlan:
    """A run as it was asked for."""

    jobs: tuple[JobPlan, ...]
    folder: Path
    as_json: bool
    quiet: bool
    """Whether the run shows only events and stalls."""
    page_port: int | None = None
    """The live page's port; 0: any free one, None: no page."""
    check: bool = True
    """Whether the network is measured before the first trial."""
    resume: bool = False
    """Whether the plan continues the run in the folder."""
    record: Path | None = None
    """The file for the last trial's blocking."""
    lab: Lab | None = None
    """The machines of the run; None: this machine."""

    @property
    def configs(self) -> list[Config]:
        """Every job's configuration, with the common part."""
        return [job.config for job in self.jobs]

    @property
    def shared(self) -> Config:
        """The first job's configuration, whose run and network sections are common to all jobs."""
        return self.jobs[0].config

    @property
    def data_plane(self) -> DataPlane:
        """The data plane that all jobs share."""
        return data_plane_of(config.job.collective for config in self.configs)


def make_plan(
    *sources: Path,
    target: str | None = None,
    driver: str | None = None,
    out: Path | None = None,
    objectives: tuple[str, ...] = (),
    settings: tuple[str, ...] = (),
    record: Path | None = None,
    lab: Lab | None = None,
    as_json: bool = False,
    quiet: bool = False,
) -> RunPlan:
    """Read the configurations and override them by the command line. Raise ConfigError for any fault."""
    jobs = plan_jobs(
        sources or (DEFAULT_CONFIG,), target=target, driver=driver, objectives=objectives, settings=settings
    )
    if record is not None:
        check_record(record, jobs=len(jobs), seeds=jobs[0].config.run.seeds)
    folder = out or default_path(jobs[0].config.run.name)
    return RunPlan(jobs=jobs, folder=folder, record=record, lab=lab, as_json=as_json, quiet=quiet)


def prepare(plan: RunPlan, topology: str) -> RunFolder:
    """Make the run folder with the full description of the run. Raise ConfigError if that fails."""
    folder = RunFolder.create(plan.folder, plan.shared.run.trials, [config.job.id for config in plan.configs])
    copy_given(plan, folder)
    folder.topology.write_text(topology)
    folder.write_record(plan.configs, driver=plan.shared.network.driver)
    point_latest(plan.folder)
    if plan.shared.run.checkpoint_every:
        os.sync()  # so that the folders survive a power cut, and the run can be resumed
    return folder


def copy_given(plan: RunPlan, folder: RunFolder) -> None:
    """Store every job's configuration in two forms: as it was given, and as the job's processes read it."""
    for job, planned in zip(folder.jobs, plan.jobs, strict=True):
        shutil.copyfile(planned.source, job.config)
    folder.write_effective(plan.configs)
