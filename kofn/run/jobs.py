"""The jobs of a run: each job's configuration with the common part, checked together before anything is made."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from msgspec.structs import replace

from kofn.run.plugins import check_plugins
from kofn.run.schedule import check_story
from kofn_common.collectives.job_collective import load_collective, servers_of
from kofn_common.config.errors import ConfigError
from kofn_common.config.objectives import check_objective
from kofn_common.config.schema import Config
from kofn_common.wire.packet import FRAME_BYTES, HEADER_BYTES, WORD_BYTES
from kofn_common.wire.sizes import RACK_WORKERS_MAX, SLOTS
from kofn_controller.p4runtime.data_plane import data_plane_of


@dataclass(frozen=True, slots=True, kw_only=True)
class JobPlan:
    """A job that is ready to run."""

    source: Path
    config: Config
    """The job's configuration, with the command line's choices, and with the first job's run and network sections."""


def plan_jobs(
    sources: Sequence[Path],
    *,
    target: str | None,
    driver: str | None,
    objectives: tuple[str, ...],
    settings: Sequence[str] = (),
) -> tuple[JobPlan, ...]:
    """Read every file, and let the command line override the first file's settings. ConfigError names file and field of
    a fault."""
    configs = [Config.load(source, settings) for source in sources]
    shared = overridden(configs[0], target=target, driver=driver, objectives=objectives)
    jobs = tuple(
        JobPlan(source=source, config=replace(config, run=shared.run, network=shared.network).at_home(source.parent))
        for source, config in zip(sources, configs, strict=True)
    )
    for job in jobs:
        _check_alone(job, "--trial" if objectives else "run.trials")
    _check_together(jobs)
    return jobs


def overridden(
    config: Config, *, target: str | None = None, driver: str | None = None, objectives: tuple[str, ...] = ()
) -> Config:
    """Return the configuration with the command line's choices, unchecked."""
    run, network = config.run, config.network
    return replace(
        config,
        run=replace(run, trials=objectives or run.trials),
        network=replace(network, target=target or network.target, driver=driver or network.driver),
    )


def _check_alone(job: JobPlan, trials: str) -> None:
    """Check that overrides fit the rest of the configuration."""
    try:
        for objective in job.config.run.trials:
            check_objective(objective, job.config.job.workers, trials)
        job.config.check()
        check_story(job.config)
        check_plugins(job.config)
        _check_rate(job.config)
    except ConfigError as error:
        raise ConfigError(f"{job.source}: {error}") from None


def _check_rate(config: Config) -> None:
    """Check that a packet and its result fit into the first timeout; else every packet would be retransmitted."""
    mbps = config.network.link_mbps
    if mbps is None or config.network.topology is not None or not load_collective(config.job.collective).ledger:
        return
    bits = 8 * (FRAME_BYTES + HEADER_BYTES + config.job.words * WORD_BYTES)
    least = 2 * bits / (1e3 * config.job.rto_ms)
    if mbps < least:
        took_ms = 2e-3 * bits / mbps
        raise ConfigError(
            f"network.link_mbps must be {least:.2g} or more with job.rto_ms = {config.job.rto_ms:g}, got {mbps:g}: a "
            f"packet of {bits // 8} bytes and its result take {took_ms:.0f} ms; or give a larger job.rto_ms, or fewer "
            "job.words"
        )


def _check_together(jobs: Sequence[JobPlan]) -> None:
    """Check that the jobs fit one switch and its program, and that a tree has one job. Compile the program."""
    plane = data_plane_of(job.config.job.collective for job in jobs)
    plane.compiled  # noqa: B018
    for job in jobs:
        if len(jobs) > 1 and job.config.job.racks > 1:
            raise ConfigError(f"{job.source}: job.racks must be 1 with several jobs, got {job.config.job.racks}")
        theirs = f"with the data plane of {job.config.job.collective!r}, got"
        if job.config.job.racks > 1 and not plane.trees:
            raise ConfigError(
                f"{job.source}: job.racks must be 1 {theirs} {job.config.job.racks}: it has no entries for a tree"
            )
        if job.config.job.exact_slots and not plane.exact_calls:
            raise ConfigError(
                f"{job.source}: job.exact_slots must be 0 {theirs} {job.config.job.exact_slots}: it has no entries for"
                " calls of PyTorch's process group"
            )
    taken: dict[int, Path] = {}
    for job in jobs:
        number = job.config.job.id
        if number in taken:
            raise ConfigError(
                f"{job.source}: job.id must differ from every other job's, got {number}, as in {taken[number]}"
            )
        taken[number] = job.source
    workers = [job.config.job.workers for job in jobs]
    servers = servers_of(job.config.job.collective for job in jobs)
    if jobs[0].config.job.racks == 1 and sum(workers) + servers > RACK_WORKERS_MAX:
        raise ConfigError(
            f"job.workers of all jobs must be at most {RACK_WORKERS_MAX - servers} together, got {_sum(workers)}: "
            "every worker is a port of the switch" + (", and so is every parameter server" if servers else "")
        )
    slots = [job.config.job.slots for job in jobs]
    if (end := slots_end(slots)) > SLOTS:
        raise ConfigError(
            f"job.slots of all jobs must end at {SLOTS} at most, got {_sum(slots)}, which end at {end}: "
            "the slots of each job begin at a multiple of its job.slots"
        )


def slots_end(slots: Sequence[int]) -> int:
    """Return the end of the last job's slots. Each job's slots begin at the next multiple of that job's slot count."""
    end = 0
    for number in slots:
        end = -(-end // number) * number + number
    return end


def _sum(numbers: Sequence[int]) -> str:
    return " + ".join(map(str, numbers)) + f" = {sum(numbers)}"
