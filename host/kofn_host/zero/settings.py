"""The settings of a sharded training, and their checks."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any, Literal, get_args

from kofn_common.config.compress import Residual
from kofn_host.errors import ZeroError

OptimizerName = Literal["adam", "lamb"]

STAGES, BITS = (1, 2, 3), (1, 8, 32)

CODECS = {1: "onebit", 8: "int8", 32: "int32"}
"""compress.codec of the elastic calls, by bits; with 32 bits there are no elastic calls."""

NUMBER = "a finite number, 0 or more"


def is_number(value: float) -> bool:
    """Return whether a value is NUMBER."""
    return isinstance(value, Real) and not isinstance(value, bool) and 0 <= value < math.inf


def _one_of(*values: int | str) -> Callable[[object], bool]:
    """Return a check for these values; 1.0 and True do not count as 1."""
    return lambda value: type(value) in (int, str) and value in values


def _are_betas(value: Any) -> bool:
    return isinstance(value, Sequence) and len(value) == 2 and all(is_number(beta) and beta < 1 for beta in value)


ALLOWED: dict[str, tuple[Callable[[Any], bool], str]] = {
    "optimizer": (_one_of(*get_args(OptimizerName)), "'adam' or 'lamb'"),
    "stage": (_one_of(*STAGES), "1, 2 or 3"),
    "bits": (_one_of(*BITS), "1, 8 or 32"),
    "freeze_step": (lambda value: type(value) is int and value >= 0, "a whole number, 0 or more"),
    "betas": (_are_betas, "two numbers, 0 to below 1"),
    "eps": (is_number, NUMBER),
    "weight_decay": (is_number, NUMBER),
    "decoupled": (lambda value: isinstance(value, bool), "True or False"),
    "variance_floor": (is_number, NUMBER),
    "mask": (lambda value: isinstance(value, bool), "True or False"),
    "residual": (_one_of(*get_args(Residual)), f"one of {', '.join(map(repr, get_args(Residual)))}"),
}
"""Each setting's check, and the words for its valid values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ZeroSettings:
    """The settings; ZeroError if a setting is invalid.

    `bits`: bits of an element from worker to switch.  32 bits are exact; with 8 or 1 the encoding error stays at the
    worker (worker_error).  `freeze_step`: with 1 bit, the number of first steps in full precision.  After these steps
    the variance is frozen, and the momentum (stage 1) or the gradient (stages 2 and 3) is sent as votes.
    `weight_decay`: its product with the parameters is added to the gradient, or with `decoupled` subtracted from the
    parameters (AdamW); LAMB adds the product to the update.  `variance_floor`: the least sqrt(variance) once frozen,
    relative to the root mean square of its block, because a block's values share one step.  `mask`: an element whose
    gradient was zero up to freeze_step gets no momentum.  `residual`: the storage of the encoding error, as
    compress.residual.
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
        for name, (allows, words) in ALLOWED.items():
            if not allows(value := getattr(self, name)):
                raise ZeroError(f"{name} must be {words}, got {value!r}")
        if self.bits == 1 and self.freeze_step < 1:
            raise ZeroError(
                f"freeze_step must be 1 or more with bits = 1, which freezes the variance, got {self.freeze_step!r}"
            )
        if self.decoupled and self.optimizer == "lamb":
            raise ZeroError("decoupled must be False, got True with optimizer = 'lamb': LAMB decays in its update")

    @property
    def votes_on_momentum(self) -> bool:
        """Whether workers vote on the momentum; if not, they send gradients, and only owners have the momentum."""
        return self.bits == 1 and self.stage == 1

    def compresses(self, step: int) -> bool:
        """Return whether this step, from 1, uses fewer than 32 bits."""
        return self.bits == 8 or (self.bits == 1 and step > self.freeze_step)
