"""The machines that a command line asks for."""

from pathlib import Path

from kofn.run.lab.lab_file import Lab
from kofn.run.lab.slurm import allocation
from kofn_common.config.errors import ConfigError


def laboratory(lab: Path | None, *, slurm: bool) -> Lab | None:
    """Return the laboratory of --lab FILE or --slurm; None without both: this machine."""
    if slurm and lab is not None:
        raise ConfigError("--lab and --slurm must not both be given")
    return Lab.load(lab) if lab is not None else allocation() if slurm else None
