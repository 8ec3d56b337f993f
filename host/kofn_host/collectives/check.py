"""Checks that a configuration's job.collective supports its other settings."""

from collections.abc import Iterator

from kofn_common.collectives.job_collective import JobCollective, load_collective
from kofn_common.config.errors import ConfigError
from kofn_common.config.objectives import check_objective
from kofn_common.config.schema import Config


def check_collective(config: Config) -> None:
    """Raise ConfigError for the first setting that the configuration's collective does not support."""
    collective = load_collective(config.job.collective)
    for wrong in _refusals(config, collective):
        raise ConfigError(f"job.collective is {config.job.collective!r}, {wrong}")


def _refusals(config: Config, collective: type[JobCollective]) -> Iterator[str]:
    yield from _of_trials(config, collective)
    if not collective.ledger:
        yield from _without_ledger(config)
    yield from _of_faults(config, collective)
    yield from _of_events(config, collective)


def _of_trials(config: Config, collective: type[JobCollective]) -> Iterator[str]:
    trials = config.run.trials
    if collective.ks == "all" and trials != ("all",):
        yield f'run.trials must be ["all"] (--trial all), got {list(trials)}: every worker is in every sum'
    for objective in trials if collective.ks == "fixed" else ():
        if objective != "all" and check_objective(objective, config.job.workers, "run.trials") is None:
            yield f"run.trials must have 'all' and 'fixed:K' alone, got {objective!r}: k never changes"


def _without_ledger(config: Config) -> Iterator[str]:
    """Yield errors for collectives whose sums are float32 and need all workers during the whole training."""
    run, compress, job = config.run, config.compress, config.job
    if compress.codec != "int32" or compress.ratio != 1:
        yield (
            f"compress.codec must be 'int32' and compress.ratio 1, got {compress.codec!r} and {compress.ratio:g}:"
            " gradients are sent as float32"
        )
    if config.policy.late_gradient != "auto":
        yield (
            f"policy.late_gradient must be 'auto', the default, got {config.policy.late_gradient!r}: no worker is late"
            " where all are waited for"
        )
    if job.start_workers not in (None, job.workers):
        yield f"job.start_workers must be {job.workers} (job.workers), got {job.start_workers}: all begin together"
    if run.record:
        yield "run.record must be false, got true: there are no contributions in fixed point to be kept"


def _of_faults(config: Config, collective: type[JobCollective]) -> Iterator[str]:
    """Yield errors for faults that the collective's packets cannot have."""
    if config.fault and not collective.faults:
        yield "[[fault]] must not be given: faults are for packets of a protocol, and this collective uses TCP"
    for fault in config.fault:
        if fault.where not in collective.faults:
            allowed = " or ".join(map(repr, collective.faults))
            yield f"fault.where must be {allowed}, got {fault.where!r}: the switch only forwards these packets"
        if (fault.corrupt or fault.exchange or fault.blocks is not None) and not collective.ledger:
            yield "fault.corrupt, exchange and blocks must not be given: they need kofn's own header and checksum"


def _of_events(config: Config, collective: type[JobCollective]) -> Iterator[str]:
    """Yield errors for events of processes that cannot restart alone, and for new objectives if k is fixed.

    Every collective allows an event that kills a worker.
    """
    workers = [f"worker-{rank}" for rank in range(config.job.workers)]
    names = ["controller", *(config.switches if "switch" in collective.restarts else [])]
    for event in config.event:
        ((action, name),) = event.actions().items()
        if action == "objective" and collective.ks != "any":
            yield f"event.objective must not be given, got {name!r}: k does not change"
        allowed = names + (workers if action == "kill" or "worker" in collective.restarts else [])
        if action != "objective" and name not in allowed:
            yield f"event.{action} must be {', '.join(allowed)}, got {name!r}"
