"""The TOML file's [model]: the workload, its training, and the sources of gradients and blocking times."""

from typing import Annotated, Literal

from msgspec import Meta

from kofn_common.config.errors import ConfigError
from kofn_common.config.plugins import STRAGGLERS, WORKLOADS
from kofn_common.config.section import NotNegative, Positive, Section

Average = Literal["gradients", "contributors"]


class ModelSection(Section, frozen=True):
    """The multilayer perceptron on 8 x 8 images of digits."""

    hidden: tuple[Annotated[int, Meta(ge=1, le=65_536)], ...] = (
        64,
    )  # units of each layer, or channels of each convolution; [960, 960]: a million parameters
    workload: str | None = (
        None  # digits, convolutional, replay, or module:Name for a custom one;
        # None: replay if model.replay is given, else digits
    )
    replay: str | None = None  # a folder of .npy files with gradients, relative to the TOML file; None: train
    stragglers: str | None = (
        None  # drawn, trace, or module:Name for a custom one; None: trace if model.trace is given, else drawn
    )
    trace: str | None = None  # a file of blocking times, relative to the TOML file; None: use [[straggler]], [[shock]]
    batch: Annotated[int, Meta(ge=1, le=65_536)] = 32  # images of a worker in an iteration
    learning_rate: Positive = 0.1
    momentum: Annotated[float, Meta(ge=0, lt=1)] = 0.9
    average: Average = "gradients"  # the divisor of a sum (docs/explanation/control.md)
    compute_ms: NotNegative = 10.0  # least time of one forward and backward pass, to imitate a larger model
    dirichlet: Positive | None = (
        None  # alpha, the similarity of the workers' classes: 0.1 is low, 100 high; None: images are dealt out evenly
    )

    @property
    def workload_name(self) -> str:
        return self.workload or ("digits" if self.replay is None else "replay")

    @property
    def straggler_source(self) -> str:
        """The source of blocking times."""
        return self.stragglers or ("drawn" if self.trace is None else "trace")

    def check(self) -> None:
        """Check that the plug-ins exist, and that they read all given settings."""
        WORKLOADS.check(self.workload_name, "model.workload")
        STRAGGLERS.check(self.straggler_source, "model.stragglers")
        if self.replay is not None and self.workload_name == "digits":
            raise ConfigError("model.replay and model.workload = 'digits' must not both be given")
        if self.trace is not None and self.straggler_source == "drawn":
            raise ConfigError("model.trace and model.stragglers = 'drawn' must not both be given")
