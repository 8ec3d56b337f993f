"""The scenarios of `kofn experiment schedule`: a model, the duration of its transfer, and a schedule."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

from msgspec.structs import replace

from kofn.experiments import matrix
from kofn.experiments.matrix import Scenario, of_scenario
from kofn_common.config.schedule import LayerSection
from kofn_common.config.schema import Config
from kofn_host.schedule import LinkModel
from kofn_host.training import JobCoding

COMPUTE_MS = 300.0
"""The time of one iteration's computation, without waiting."""

RATIOS = ("0.5", "1", "2")
"""Ratios of the transfer's time to the computation's time."""

MODELS = {
    "equal": ([1.0] * 8, [1.0] * 8),
    "vgg": ([4, 4, 3, 3, 2, 2, 1, 0.5], [0.1, 0.2, 0.4, 0.8, 1, 1, 6, 3]),
    "transformer": ([0.2, *[1.0] * 8, 0.5], [4, *[1.0] * 8, 1]),
    "mlp": ([0.44, 0.55, 0.01], [0.44, 0.55, 0.01]),
}
"""The layers' computation and their parameters, in relative units. In order: eight equal layers; computation in front
and parameters behind, as in VGG; a large embedding in front; the perceptron 784-960-960-10."""

REAL = "real"
"""A perceptron, which NumPy computes on the processors that also move the packets. No claim is made about this
perceptron."""

REAL_SETTINGS = ["model.workload=digits", "model.hidden=[960, 960]", "run.target=1", "run.evaluate_every=1000"]

BUCKETS = {"buckets-25mb": 25_600, "buckets-1mb": 1_024}
"""The sizes of buckets in KiB: PyTorch's default, and smaller buckets."""

ENUMERATED = ["schedule.threshold_kb=8", "schedule.enumerate=true", "run.max_iterations=400"]

CONTENDERS = {
    "sequential": ["schedule.family=sequential"],
    **{name: ["schedule.family=buckets", f"schedule.threshold_kb={threshold}"] for name, threshold in BUCKETS.items()},
    "wait-free": ["schedule.family=wait-free", "schedule.threshold_kb=1"],
    "priority": ["schedule.family=priority", "schedule.threshold_kb=128"],
    "priority-tuned": ["schedule.family=priority", *ENUMERATED],
    "source": ["schedule.family=front-first", *ENUMERATED],
    "late-front-tuned": ["schedule.family=late-front", *ENUMERATED],
    "auto": ["schedule.family=auto"],
}

DEFAULT = "auto"


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """A schedule for a model whose transfer takes `ratio` times as long as its computation. An empty ratio keeps the
    model as it is."""

    model: str
    ratio: str
    schedule: str

    @property
    def setting(self) -> str:
        """The setting in which contenders are compared."""
        return f"{self.model}-{self.ratio}" if self.ratio else self.model

    @property
    def name(self) -> str:
        return f"{self.setting}-{self.schedule}"

    def scenario(self, settings: Sequence[str], target: str | None) -> Scenario:
        """Return the scenario with the command line's settings. ConfigError names the conflict."""
        path = matrix.FOLDER / "schedule" / "accelerator.toml"
        with of_scenario(self.name):
            real = REAL_SETTINGS if self.model == REAL else []
            config = Config.load(path, [*real, *CONTENDERS[self.schedule], *settings])
            config = config if real else self._with_layers(config)
        return Scenario(name=self.name, config=config).overridden(target=target, objectives=())

    def _with_layers(self, config: Config) -> Config:
        """Return the configuration with layers of so many elements that their transfer takes `ratio` times as long as
        the computation."""
        computation, parameters = MODELS[self.model]
        elements = float(self.ratio) * COMPUTE_MS / 1000 * link_of(config).rate
        unit_ms = COMPUTE_MS / (3 * sum(computation) - computation[0])
        layers = (
            LayerSection(
                elements=max(1, round(elements * share / sum(parameters))),
                forward_ms=unit_ms * work,
                error_ms=unit_ms * work,
                weight_ms=unit_ms * work,
            )
            for work, share in zip(computation, parameters, strict=True)
        )
        return replace(config, layer=tuple(layers))


def link_of(config: Config) -> LinkModel:
    """Return a configuration's link for the model of the pipeline."""
    layout = JobCoding.of(config.job, config.compress, 1).layout
    return LinkModel.of(config.pace_mbps(), layout, config.job.window)


ALL = {
    contender.name: contender
    for model, ratio in [*product(MODELS, RATIOS), (REAL, "")]
    for schedule in CONTENDERS
    for contender in [Contender(model=model, ratio=ratio, schedule=schedule)]
}
"""All contenders, by name."""
