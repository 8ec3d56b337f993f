"""The TOML file's [schedule]: the order in which gradients are computed, and the pieces in which they leave."""

from typing import Annotated

from msgspec import Meta

from kofn_common.config.errors import ConfigError
from kofn_common.config.section import NotNegative, PositiveInt, Section, WholeNumber

AUTO = "auto"

FAMILIES = ("sequential", "buckets", "wait-free", "priority", "front-first", "late-front")
"""The families; docs/explanation/schedule.md explains each."""

WITH_FRONT = ("front-first", "late-front")

WITH_THRESHOLD = ("priority", *WITH_FRONT)


class LayerSection(Section, frozen=True):
    """One layer of model.workload = "accelerator", in order."""

    elements: PositiveInt
    forward_ms: NotNegative = 0.0
    error_ms: NotNegative = 0.0  # time for the error term of the layer's input; the first layer has none
    weight_ms: NotNegative = 0.0  # time for the layer's weight gradient
    name: str = ""  # empty: the layer's number


class ScheduleSection(Section, frozen=True):
    """Order and overlap of computation and transfers (docs/explanation/schedule.md)."""

    family: str | None = (
        None  # sequential, buckets, wait-free, priority, front-first, late-front, auto (a search); None: no schedule
    )
    threshold_kb: Annotated[float, Meta(gt=0, le=1e6)] = (
        256.0  # size in float32: smaller layers are sent together, larger layers in pieces of at most this size
    )
    front: WholeNumber = 0  # number of first layers whose weight gradients are computed early (front-first, late-front)

    enumerate: bool = False  # find threshold and front by trying all (source 001), which takes hundreds of iterations

    @property
    def searches(self) -> bool:
        """Whether the schedule is found during the run."""
        return self.enumerate or self.family == AUTO

    @property
    def threshold(self) -> int:
        """The threshold in elements."""
        return max(1, int(self.threshold_kb * 1024 / 4))

    def check(self) -> None:
        """Check the family and its settings. Raise ConfigError."""
        if self.family is None:
            return
        if self.family not in (*FAMILIES, AUTO):
            raise ConfigError(f"schedule.family must be {', '.join(FAMILIES)} and {AUTO}, got {self.family!r}")
        if self.front and self.family not in WITH_FRONT:
            allowed = " or ".join(WITH_FRONT)
            raise ConfigError(f"schedule.family must be {allowed} with schedule.front above 0, got {self.family!r}")
        if self.enumerate and self.family not in WITH_THRESHOLD:
            allowed = ", ".join(WITH_THRESHOLD)
            raise ConfigError(f"schedule.family must be one of {allowed} with schedule.enumerate, got {self.family!r}")
