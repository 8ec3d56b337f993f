"""What a sharded training is asked to do, and what of that is allowed."""

from dataclasses import dataclass
from typing import Literal, get_args

from kofn.config.compress import Residual
from kofn.host.errors import ZeroError

OptimizerName = Literal["adam", "lamb"]

STAGES, BITS = (1, 2, 3), (1, 8, 32)

CODECS = {1: "onebit", 8: "int8", 32: "int32"}
"""compress.codec of the elastic calls, by bits; with 32 there are none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ZeroSettings:
    """`bits` of an element upstream: 32 is exact, 8 and 1 keep what they leave over (worker_error).

    freeze_step: with 1 bit the first so many steps are in full precision; then the variance is frozen, and the momentum
    (stage 1) or the gradient (stages 2 and 3) is voted on.  weight_decay: added to the gradient, or with `decoupled`
    taken off the parameters (AdamW); LAMB adds it to the update.  variance_floor: the least sqrt(variance) once it is
    frozen, in root mean squares of its block: a block's values share one step.  mask: what never had a gradient until
    then has no momentum.  residual: how what is left over is kept, as compress.residual.  ZeroError names what is not
    allowed.
    """

    optimizer: OptimizerName = "adam"
    stage: int = 1
    bits: int = 1
    freeze_step: int = 100
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0
    decoupled: bool = False
    variance_floor: float = 0.1
    mask: bool = True
    residual: Residual = "exact"

    def __post_init__(self) -> None:
        if self.optimizer not in get_args(OptimizerName):
            raise ZeroError(f"optimizer is {self.optimizer!r}: 'adam' or 'lamb' is allowed")
        if self.stage not in STAGES:
            raise ZeroError(f"stage is {self.stage!r}: 1, 2 or 3 is allowed")
        if self.bits not in BITS:
            raise ZeroError(f"bits is {self.bits!r}: 1, 8 or 32 is allowed")
        if self.residual not in get_args(Residual):
            raise ZeroError(f"residual is {self.residual!r}: {', '.join(map(repr, get_args(Residual)))} are allowed")
        if self.bits == 1 and self.freeze_step < 1:
            raise ZeroError(
                f"freeze_step is {self.freeze_step!r}: 1 or more is allowed with bits = 1, the variance is frozen then"
            )
        if not all(0 <= beta < 1 for beta in self.betas):
            raise ZeroError(f"betas are {self.betas}: 0 to below 1 is allowed")
        for name in ("eps", "weight_decay", "variance_floor"):
            if getattr(self, name) < 0:
                raise ZeroError(f"{name} is {getattr(self, name)}: 0 or more is allowed")
        if self.decoupled and self.optimizer == "lamb":
            raise ZeroError("decoupled is True with optimizer = 'lamb': False is allowed, LAMB decays in its update")

    @property
    def votes_on_momentum(self) -> bool:
        """Else gradients leave, and their owner alone has the momentum."""
        return self.bits == 1 and self.stage == 1

    def compresses(self, step: int) -> bool:
        """Whether this step, from 1, is in fewer than 32 bits."""
        return self.bits == 8 or (self.bits == 1 and step > self.freeze_step)
