"""What `kofn compare` compares: a contender in a setting, and the configuration that both come to.

A contender is a collective with the codec that it sends gradients in; a setting is everything else: model, straggler
scenario, workers, link rate.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

from msgspec import structs

from kofn.config.errors import ConfigError
from kofn.config.objectives import DEFAULT
from kofn.config.schema import SWITCH, Config, StragglerSection
from kofn.experiments import matrix
from kofn.experiments.compare.models import DIGITS, GPT_SCRIPT, GradientModel
from kofn.experiments.matrix import Scenario
from kofn.host.collectives.job_collective import JobCollective, load_collective
from kofn.host.compression.registry import load_codecs

IN_NETWORK = ("full", "fixed", "adaptive")
"""The switch sums: of all workers, of a fixed k, of the k that the controller chooses."""

COLLECTIVES = ("server", "ring", "gloo", "mpi", *IN_NETWORK)
"""What is compared where nothing else is said, in the order in which they run and are shown."""

FLOAT32 = "float32"
"""What the others' gradients are sent as."""

NONE, BLOCKED = "none", "blocked"
STRAGGLERS = (NONE, BLOCKED)
OTHERS_MS = 1.0
"""Mean blocking an iteration of the others, where one worker is blocked: as in kofn/config/default.toml."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """A collective, one of IN_NETWORK or what job.collective names, and its codec."""

    collective: str
    codec: str

    @property
    def name(self) -> str:
        """`ring`, `full-int8`."""
        name = self.collective if self.codec == FLOAT32 else f"{self.collective}-{self.codec}"
        return name.replace(":", ".")

    @property
    def job_collective(self) -> str:
        """As the configuration has it."""
        return SWITCH if self.collective in IN_NETWORK else self.collective

    @property
    def able(self) -> type[JobCollective]:
        """What it is able to do."""
        return load_collective(self.job_collective)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What all contenders of a comparison have in common."""

    model: GradientModel
    straggler: str
    workers: int
    mbps: float

    @property
    def name(self) -> str:
        """`1m-none-4w-100m`."""
        return f"{self.model.name}-{self.straggler}-{self.workers}w-{self.mbps:g}m"

    @property
    def trained(self) -> bool:
        """Whether there is an accuracy; gradients that are replayed train nothing, and a script has its own."""
        return self.model.name == DIGITS

    @property
    def title(self) -> str:
        who = "no stragglers" if self.straggler == NONE else "one worker blocked"
        return f"{self.model.title}, {self.workers} workers, links of {self.mbps:g} Mbit/s, {who}"

    def stragglers(self) -> tuple[StragglerSection, ...]:
        """The last worker is blocked, where one is."""
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
    """Of `fixed`."""

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
        """What the codec sends for a gradient, without headers."""
        return self.setting.model.elements * self.width // 8

    @property
    def limit_s(self) -> float:
        """The link's limit: how long these bytes take at its rate."""
        return 8e-6 * self.gradient_bytes / self.setting.mbps

    @property
    def busiest_bytes(self) -> float:
        """What has to go over the busiest link in one direction, without headers, for an all-reduce."""
        return self.contender.able.busiest_bytes(self.gradient_bytes, self.setting.workers)

    @property
    def objective(self) -> str:
        return {"adaptive": DEFAULT, "fixed": f"fixed:{self.k}"}.get(self.contender.collective, "all")

    def scenario(self, *, target: str, iterations: int, settings: Sequence[str]) -> Scenario:
        """As a configuration; `settings` are the command line's.  ConfigError names what does not fit."""
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
            own += [f"model.replay={json.dumps(str(self.setting.model.replay))}"]
        if self.setting.model.scripted:
            own += [f"torch.script={json.dumps(str(GPT_SCRIPT))}"]
            elastic = self.contender.collective in ("fixed", "adaptive")
            own += ['torch.group="worker"', 'torch.arguments=["--elastic"]'] if elastic else []
        config = load(self.setting.model.base, [*own, *settings], self.name)
        return checked(self.name, structs.replace(config, straggler=self.setting.stragglers()))


def load(base: str, settings: Sequence[str], name: str) -> Config:
    """A file of kofn/experiments/compare/ with other values; ConfigError names the scenario."""
    try:
        return Config.load(matrix.FOLDER / "compare" / f"{base}.toml", settings)
    except ConfigError as error:
        raise ConfigError(f"{name}: {error}") from None


def checked(name: str, config: Config) -> Scenario:
    """A scenario of it; ConfigError names what does not fit."""
    return Scenario(name=name, config=config).overridden(target=None, objectives=())


def contenders(collectives: Sequence[str], codecs: Sequence[str]) -> list[Contender]:
    """Each collective with each codec, but for those that send float32."""
    found = [Contender(collective=collective, codec=FLOAT32) for collective in collectives]
    return [replace(one, codec=codec) for one in found for codec in (codecs if one.able.ledger else (FLOAT32,))]


def points(
    models: Sequence[GradientModel],
    stragglers: Sequence[str],
    rates: Mapping[int, Sequence[float]],
    compared: Sequence[Contender],
    k: int | None,
) -> list[Point]:
    """Setting by setting, the contenders of each one after another; `rates`: of links, by number of workers."""
    return [
        Point(
            setting=Setting(model=model, straggler=straggler, workers=workers, mbps=mbps),
            contender=contender,
            k=max(1, workers - 1) if k is None else k,
        )
        for model, straggler, workers in product(models, stragglers, rates)
        for mbps in rates[workers]
        for contender in compared
    ]
