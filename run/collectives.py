"""What a configuration may ask of each job.collective.

The switch and a parameter server are spoken to by the same protocol and keep the same books; the switch alone has a
controller that chooses k.  Ring and gloo are the workers' own: all of them, from the beginning to the end, over TCP.
"""

from collections.abc import Iterator

from run.config import PEER_TO_PEER, Config
from run.errors import ConfigError
from run.objectives import check_objective


def check_collective(config: Config) -> None:
    """ConfigError for the first thing that this configuration's collective has not."""
    if config.job.collective == "switch":
        return
    refusals = _of_peers(config) if config.job.collective in PEER_TO_PEER else _of_server(config)
    for wrong in refusals:
        raise ConfigError(f"job.collective is {config.job.collective!r}, {wrong}")


def _of_peers(config: Config) -> Iterator[str]:
    """Every sum is of all workers, who live as long as the training, and float32."""
    run, compress, job = config.run, config.compress, config.job
    if run.passes != ("all",):
        yield f'run.passes are {list(run.passes)}: only ["all"] is allowed (--pass all), every worker is in every sum'
    if compress.codec != "int32" or compress.ratio != 1:
        yield (
            f"compress.codec is {compress.codec!r} and compress.ratio {compress.ratio:g}: 'int32' and 1, the defaults,"
            " are allowed, as gradients are sent as float32 whatever they are"
        )
    if config.policy.late_gradient != "auto":
        yield (
            f"policy.late_gradient is {config.policy.late_gradient!r}: 'auto', the default, is allowed, nobody is late"
            " where all are waited for"
        )
    if job.start_workers not in (None, job.workers):
        yield f"job.start_workers is {job.start_workers}: {job.workers} (job.workers) is allowed, all begin together"
    if run.record:
        yield "run.record is true: false is allowed, there are no contributions in fixed point to be kept"
    if config.fault:
        yield "[[fault]] is given: none is allowed, faults are for kofn's own packets and here is TCP alone"
    yield from _of_events(config, "controller")


def _of_server(config: Config) -> Iterator[str]:
    """It has one k from its start to its end, and takes part in no regroup."""
    for objective in config.run.passes:
        if objective != "all" and check_objective(objective, config.job.workers, "run.passes") is None:
            yield f"run.passes has {objective!r}: 'all' and 'fixed:K' are allowed, a server's k never changes"
    for fault in config.fault:
        if fault.where == "switch":
            yield "fault.where is 'switch': 'host' is allowed, the switch only forwards these packets"
    workers = (f"worker-{rank}" for rank in range(config.job.workers))
    yield from _of_events(config, "controller", *workers)


def _of_events(config: Config, *names: str) -> Iterator[str]:
    """Events of these processes are allowed, and none that chooses k."""
    for event in config.event:
        ((action, name),) = event.actions().items()
        if action == "objective":
            yield f"event.objective is {name!r}: none is allowed, k does not change"
        elif name not in names:
            yield f"event.{action} is {name!r}: {', '.join(names)} is allowed"
