"""Checks that all plug-ins of a configuration can be loaded and are complete, before any process starts."""

from kofn_common.config.errors import ConfigError
from kofn_common.config.objectives import OBJECTIVES, check_objective
from kofn_common.config.plugins import CODECS
from kofn_common.config.schema import Config
from kofn_host.collectives import check_collective
from kofn_host.errors import CodecError
from kofn_host.training import load_codecs
from kofn_host.workload import check_workload, straggler_class


def check_plugins(config: Config) -> None:
    """Check the plug-ins. ConfigError names the wrong plug-in and the reason. Built-in plug-ins are not loaded; their
    abilities are compared with the configuration."""
    check_collective(config)
    check_workload(config)
    if config.schedule.family is not None:
        from kofn_host.training import check_schedule  # noqa: PLC0415  # the agent and the engine

        check_schedule(config)
    straggler_class(config)
    _check_codec(config)
    check_objectives(config)


def check_objectives(config: Config) -> None:
    """Check the plug-ins that choose k. ConfigError names the wrong plug-in and the reason."""
    for objective in config.objectives:
        _check_objective(objective, config.job.workers)


def _check_codec(config: Config) -> None:
    if config.compress.codec in CODECS.built_in:
        return
    compress, job = config.compress, config.job
    try:
        widths = [*load_codecs(compress.codec, workers=job.workers, rounding=compress.rounding)]
    except CodecError as error:
        raise ConfigError(f"compress.codec: {error}") from error
    compress.check_words(widths, job.words)


def _check_objective(text: str, workers: int) -> None:
    if check_objective(text, workers, "run.trials") is None and text not in OBJECTIVES.built_in:
        from kofn_controller.policy.objective import objective  # noqa: PLC0415  # NumPy and SciPy

        objective(text, workers)
