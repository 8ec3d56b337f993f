"""The TOML file's [schedule]: which gradient is computed first, and in which pieces it leaves."""

from typing import Annotated

from msgspec import Meta

from kofn.config.errors import ConfigError
from kofn.config.section import Section

FAMILIES = ("sequential", "buckets", "wait-free", "priority", "front-first", "late-front")
"""docs/explanation/schedule.md says what each does."""

WITH_FRONT = ("front-first", "late-front")


class ScheduleSection(Section, frozen=True):
    """Order and overlap of computation and transfers (docs/explanation/schedule.md)."""

    family: str | None = None  # sequential, buckets, wait-free, priority, front-first, late-front; None: no schedule
    threshold_kb: Annotated[float, Meta(gt=0, le=1e6)] = (
        256.0  # of float32: smaller layers leave together, larger ones in pieces of at most this
    )
    front: Annotated[int, Meta(ge=0)] = 0  # first layers whose weight gradients are computed early (front-first, late-front)

    @property
    def threshold(self) -> int:
        """In elements."""
        return max(1, int(self.threshold_kb * 1024 / 4))

    def check(self) -> None:
        """That the family exists, and that what it needs is there; ConfigError."""
        if self.family is None:
            return
        if self.family not in FAMILIES:
            raise ConfigError(f"schedule.family is {self.family!r}: {', '.join(FAMILIES)} are allowed")
        if self.front and self.family not in WITH_FRONT:
            allowed = " or ".join(WITH_FRONT)
            raise ConfigError(f"schedule.front is {self.front}, schedule.family {self.family!r}: {allowed} is needed")
