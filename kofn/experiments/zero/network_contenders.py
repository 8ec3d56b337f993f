"""The contenders of `kofn experiment zero --network`: sharded trainings through the switch, and over gloo's TCP."""

from dataclasses import dataclass
from typing import Literal

from kofn.experiments.zero.contenders import REFERENCE, WORKERS, stage_name

Optimizer = Literal["kofn", "FSDP2", "ZeroRedundancyOptimizer"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkFormula:
    """Bytes of a step over a worker's link, to the switch (up) and from the switch (down), without headers."""

    up: float
    down: float

    def __add__(self, other: "LinkFormula") -> "LinkFormula":
        return LinkFormula(up=self.up + other.up, down=self.down + other.down)


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkContender:
    """A training through the switch, or with `gloo` over TCP; gloo with one bit is DeepSpeed's two-sided scheme."""

    stage: int
    bits: int = 32
    optimizer: Optimizer = "kofn"
    gloo: bool = False

    @property
    def name(self) -> str:
        if self.optimizer != "kofn":
            return self.optimizer
        two_sided = ", two-sided" if self.gloo and self.bits == 1 else ""
        return f"{stage_name(self.stage, self.bits)}{two_sided}{', gloo' if self.gloo else ''}"

    @property
    def arguments(self) -> list[str]:
        """The arguments of kofn_torch.scripts.sharded_steps."""
        words = ["--optimizer", self.optimizer, "--stage", str(self.stage), "--bits", str(self.bits)]
        return [*words, "--gloo"] if self.gloo else words

    @property
    def learns_as(self) -> str:
        """The name in contenders.CONTENDERS of the training with the same steps."""
        return REFERENCE if self.bits == 32 else self.name.removesuffix(", gloo")

    @property
    def warms_up(self) -> bool:
        """Whether the first steps are in full precision."""
        return self.bits == 1

    def link_bytes(self, elements: int, *, warm: bool, workers: int = WORKERS) -> LinkFormula:
        """Return the bytes of a step; with `warm`, of a step of the warm-up."""
        bits = 32 if warm else self.bits
        gathers = 2 if self.stage == 3 else 1
        mean = self._gloo_mean(bits, elements, workers) if self.gloo else self._switch_mean(bits, elements, workers)
        whole = 4 * elements
        gather = _ring(whole, workers) if self.gloo else LinkFormula(up=whole / workers, down=whole)
        return sum([gather] * gathers, start=mean)

    def _switch_mean(self, bits: int, elements: int, workers: int) -> LinkFormula:
        """Return the bytes of the mean. Counts of votes are wider than votes; in stages 2 and 3 a worker gets only the
        part of its shard."""
        answer = workers.bit_length() if bits == 1 else bits
        own = workers if self.stage > 1 else 1
        return LinkFormula(up=elements * bits / 8, down=elements * answer / 8 / own)

    def _gloo_mean(self, bits: int, elements: int, workers: int) -> LinkFormula:
        """Return the bytes of the mean, which goes twice round a ring. This holds in stages 2 and 3 as well, because
        gloo's reduce_scatter is an all-reduce."""
        once = _ring(elements * bits / 8, workers)
        return once + once


def _ring(size: float, workers: int) -> LinkFormula:
    """Return the bytes of an array once round a ring: a worker passes on all parts of the array but one."""
    passed = size * (workers - 1) / workers
    return LinkFormula(up=passed, down=passed)


def _contenders() -> list[NetworkContender]:
    stages = (1, 2, 3)
    return [
        *(NetworkContender(stage=stage, gloo=True) for stage in stages),
        *(NetworkContender(stage=stage, bits=bits) for bits in (32, 8, 1) for stage in stages),
        NetworkContender(stage=1, bits=1, gloo=True),
        NetworkContender(stage=1, optimizer="ZeroRedundancyOptimizer", gloo=True),
        NetworkContender(stage=3, optimizer="FSDP2", gloo=True),
    ]


NETWORK = {contender.name: contender for contender in _contenders()}
"""All contenders, by name."""
