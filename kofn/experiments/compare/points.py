"""The points of `kofn compare`: a contender in a setting, and its configuration.

A contender is a collective with a codec for its gradients; a setting is everything else: model, straggler scenario,
number of workers, link rate.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

from msgspec import structs

from kofn.experiments import matrix
from kofn.experiments.compare.models import DIGITS, GPT_SCRIPT, GradientModel
from kofn.experiments.matrix import Scenario
from kofn_common.collectives.job_collective import JobCollective, load_collective
from kofn_common.config.errors import ConfigError
from kofn_common.config.job import SWITCH
from kofn_common.config.k_bounds import bound_k
from kofn_common.config.objectives import DEFAULT
from kofn_common.config.schema import Config
from kofn_common.config.stragglers import StragglerSection
from kofn_common.json_text import json_text
from kofn_host.training import load_codecs

IN_NETWORK = ("full", "fixed", "adaptive")
"""The collectives that sum in the switch: of all workers, of a fixed k, of a k that the controller chooses."""

COLLECTIVES = ("server", "ring", "gloo", "mpi", *IN_NETWORK)
"""The default collectives, in the order of their runs and in the tables."""

FLOAT32 = "float32"
"""The form in which other collectives send gradients."""

NONE, BLOCKED = "none", "blocked"
STRAGGLERS = (NONE, BLOCKED)
OTHERS_MS = 1.0
"""The other workers' mean blocking in an iteration if a worker is blocked, as in the default configuration."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """A collective, from IN_NETWORK or a value of job.collective, and its codec."""

    collective: str
    codec: str

    @property
    def name(self) -> str:
        """The name, such as `ring` or `full-int8`."""
        name = self.collective if self.codec == FLOAT32 else f"{self.collective}-{self.codec}"
        return name.replace(":", ".")

    @property
    def job_collective(self) -> str:
        """The value of job.collective."""
        return SWITCH if self.collective in IN_NETWORK else self.collective

    @property
    def able(self) -> type[JobCollective]:
        """The abilities of the collective."""
        return load_collective(self.job_collective)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """The setting that all contenders of a comparison share."""

    model: GradientModel
    straggler: str
    workers: int
    mbps: float

    @property
    def name(self) -> str:
        """The name, such as `1m-none-4w-100m`."""
        return f"{self.model.name}-{self.straggler}-{self.workers}w-{self.mbps:g}m"

    @property
    def trained(self) -> bool:
        """Whether the model has an accuracy: replayed gradients train nothing, and a script has another metric."""
        return self.model.name == DIGITS

    @property
    def title(self) -> str:
        stragglers = "no stragglers" if self.straggler == NONE else "one worker blocked"
        return f"{self.model.title}, {self.workers} workers, links of {self.mbps:g} Mbit/s, {stragglers}"

    def stragglers(self) -> tuple[StragglerSection, ...]:
        """Return the stragglers. If a worker is blocked, the last worker is blocked."""
        if self.straggler == NONE:
            return ()
        others = tuple(range(self.workers - 1))
        return (
            *((StragglerSection(workers=others, mean_ms=OTHERS_MS),) if others else ()),
            StragglerSection(workers=(self.workers - 1,), mean_ms=self.model.blocked_ms),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A contender in a setting."""

    setting: Setting
    contender: Contender
    k: int
    """The k of `fixed`."""

    @property
    def name(self) -> str:
        return f"{self.setting.name}-{self.contender.name}"

    @property
    def width(self) -> int:
        """Bits of an element on the wire."""
        if self.contender.codec == FLOAT32:
            return 32
        return max(load_codecs(self.contender.codec, workers=self.setting.workers))

    @property
    def gradient_bytes(self) -> int:
        """Bytes that the codec sends for a gradient, without headers."""
        return self.setting.model.elements * self.width // 8

    @property
    def limit_s(self) -> float:
        """The link's limit: the time of the gradient's bytes at the link's rate."""
        return 8e-6 * self.gradient_bytes / self.setting.mbps

    @property
    def busiest_bytes(self) -> float:
        """Bytes of an all-reduce over the busiest link in one direction, without headers."""
        return self.contender.able.busiest_bytes(self.gradient_bytes, self.setting.workers)

    @property
    def objective(self) -> str:
        return {"adaptive": DEFAULT, "fixed": f"fixed:{self.k}"}.get(self.contender.collective, "all")

    def scenario(self, *, target: str, iterations: int, settings: Sequence[str]) -> Scenario:
        """Return the scenario with the command line's settings. ConfigError names the conflict."""
        own = [
            f"job.collective={self.contender.job_collective}",
            f"job.workers={self.setting.workers}",
            f"network.link_mbps={self.setting.mbps}",
            f"network.target={target}",
            f'run.trials=["{self.objective}"]',
            *([] if self.contender.codec == FLOAT32 else [f"compress.codec={self.contender.codec}"]),
        ]
        if not self.setting.trained:
            own += [f"run.max_iterations={iterations}"]
        if self.setting.model.replay is not None:
            own += [f"model.replay={json_text(str(self.setting.model.replay))}"]
        if self.setting.model.scripted:
            own += [f"torch.script={json_text(str(GPT_SCRIPT))}"]
            elastic = self.contender.collective in ("fixed", "adaptive")
            own += ['torch.group="worker"', 'torch.arguments=["--elastic"]'] if elastic else []
        config = load(self.setting.model.base, [*own, *settings], self.name)
        return checked(self.name, structs.replace(config, straggler=self.setting.stragglers()))


def load(base: str, settings: Sequence[str], name: str) -> Config:
    """Load a file of kofn/experiments/compare/ with overrides. ConfigError names the scenario."""
    try:
        return Config.load(matrix.FOLDER / "compare" / f"{base}.toml", settings)
    except ConfigError as error:
        raise ConfigError(f"{name}: {error}") from None


def checked(name: str, config: Config) -> Scenario:
    """Return the scenario of a configuration, checked. ConfigError names the conflict."""
    return Scenario(name=name, config=config).overridden(target=None, objectives=())


def contenders(collectives: Sequence[str], codecs: Sequence[str]) -> list[Contender]:
    """Return every collective with every codec; a collective that can only send float32 comes once."""
    found = [Contender(collective=collective, codec=FLOAT32) for collective in collectives]
    return [
        replace(contender, codec=codec)
        for contender in found
        for codec in (codecs if contender.able.ledger else (FLOAT32,))
    ]


def points(
    models: Sequence[GradientModel],
    stragglers: Sequence[str],
    rates: Mapping[int, Sequence[float]],
    compared: Sequence[Contender],
    k: int | None,
) -> list[Point]:
    """Return the points, setting by setting, with the contenders in order; `rates` are the links' rates by number of
    workers."""
    return [
        Point(
            setting=Setting(model=model, straggler=straggler, workers=workers, mbps=mbps),
            contender=contender,
            k=bound_k(workers - 1, workers) if k is None else k,
        )
        for model, straggler, workers in product(models, stragglers, rates)
        for mbps in rates[workers]
        for contender in compared
    ]
