"""A training by a user's PyTorch script, which torchrun starts at each worker and which uses kofn_torch."""

import sys
from importlib.util import find_spec
from pathlib import Path

from kofn_common.config.errors import ConfigError
from kofn_common.config.schema import Config
from kofn_host.arrays import Floats
from kofn_host.workload.workload import Workload


class Script(Workload):
    """A placeholder without a metric: only the script itself can compute gradients."""

    metric = None

    def __init__(self, config: Config, rank: int) -> None:
        raise ConfigError(f"torch.script is {config.torch.script!r}: only `kofn run` trains with a script")

    def gradient(self, iteration: int, batch: int = 0) -> tuple[None, Floats]:
        raise NotImplementedError

    @classmethod
    def check(cls, config: Config) -> None:
        if config.torch.script is None:
            raise ConfigError("torch.script must be given with model.workload = 'script': a file")
        if not Path(config.torch.script).is_file():
            raise ConfigError(f"torch.script is {config.torch.script!r}: there is no such file")
        if find_spec("torch") is None:
            raise ConfigError(
                f"torch.script is given, and {sys.executable} has no module torch: kofn/run/setup.sh torch"
            )


script = Script
