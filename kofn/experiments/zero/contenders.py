"""The trainings of `kofn experiment zero`: stages and bits, and variants without a part of the algorithm."""

from dataclasses import dataclass, replace

from kofn_common.config.compress import Residual
from kofn_host.zero import ZeroSettings

WORKERS = 4

ROUNDED: tuple[Residual, ...] = ("bfloat16", "int8")

REFERENCE = "32 bits"
"""Uncompressed Adam. With 32 bits all stages make the same steps, so one stage represents all stages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ZeroContender:
    """A kind of training.

    `codec` is the lanes' codec; if it is empty, `bits` decides on the codec. `k` workers, drawn for each step, are in
    time; the other workers' contributions are stashed. `two_sided` is DeepSpeed's scheme. With `majority` a block's
    answer has only the signs of the counted votes.
    """

    name: str
    stage: int = 2
    bits: int = 1
    codec: str = ""
    k: int = WORKERS
    two_sided: bool = False
    error_feedback: bool = True
    majority: bool = False
    mask: bool = True
    floor: float = 0.1
    residual: Residual = "exact"

    def settings(self, freeze_step: int) -> ZeroSettings:
        return ZeroSettings(
            stage=self.stage,
            bits=self.bits,
            freeze_step=freeze_step,
            mask=self.mask,
            variance_floor=self.floor,
            residual=self.residual,
        )


def stage_name(stage: int, bits: int) -> str:
    return f"stage {stage}, {bits} bit{'s' * (bits > 1)}"


def _contenders() -> list[ZeroContender]:
    few = [
        ZeroContender(name=stage_name(stage, bits), stage=stage, bits=bits) for bits in (8, 1) for stage in (1, 2, 3)
    ]
    stashed = [replace(base, name=f"{base.name}, k = 3 of 4", k=3) for base in few]
    rounded: list[ZeroContender] = [
        replace(base, name=f"{base.name}, residual {kept}", residual=kept)
        for base in few
        if base.stage < 3
        for kept in ROUNDED
    ]
    voting = [base for base in few if base.bits == 1 and base.stage < 3]
    controls = [
        change
        for base in voting
        for change in (
            replace(base, name=f"{base.name}, no error feedback", error_feedback=False),
            replace(base, name=f"{base.name}, no mask, no floor", mask=False, floor=0.0),
            replace(base, name=f"{base.name}, majority", majority=True),
        )
    ]
    frozen = ZeroContender(name=f"{REFERENCE}, variance frozen", codec="int32")
    two_sided = ZeroContender(name="stage 1, 1 bit, two-sided", stage=1, two_sided=True)
    return [ZeroContender(name=REFERENCE, bits=32), frozen, *few, *rounded, *stashed, two_sided, *controls]


CONTENDERS = {contender.name: contender for contender in _contenders()}
"""All contenders, by name."""
