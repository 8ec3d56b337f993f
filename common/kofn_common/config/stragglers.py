"""The TOML file's [[straggler]] and [[shock]]: the blocking times of workers."""

from typing import Annotated, Literal

from msgspec import Meta

from kofn_common.config.errors import ConfigError
from kofn_common.config.job import JobSection
from kofn_common.config.section import NotNegative, Positive, PositiveInt, Probability, Section, WholeNumber

Law = Literal["poisson", "constant", "exponential", "pareto", "bursty"]
"""The law of blocking times. poisson: a Poisson number of events of event_ms; constant: always mean_ms; exponential;
pareto: shape 2, from 0 on; bursty: a Markov chain with equal blocking in bursts, and no blocking between them."""


class StragglerSection(Section, frozen=True):
    """Blocking of some workers from an iteration on, until a later entry for the same worker."""

    workers: tuple[WholeNumber, ...]  # ranks, or text: "all", "last 2", "rack 3", "0,8-15", "0-:10" (every 10th)
    mean_ms: NotNegative  # mean blocking time of an iteration; lambda of law = "poisson"
    law: Law = "poisson"
    event_ms: Positive = 5.0  # tau: duration of one blocking event of law = "poisson"
    burst_share: Annotated[float, Meta(gt=0, lt=1)] = 0.1  # share of iterations in bursts of law = "bursty"
    burst_iterations: Annotated[float, Meta(ge=1, le=1e6)] = 10.0  # mean length of a burst of law = "bursty"
    compute_ms: NotNegative | None = None  # replaces model.compute_ms, to imitate other hardware
    from_iteration: PositiveInt = 1

    def check(self) -> None:
        """Check that bursts can be as long, and as rare, as both numbers say."""
        most = self.burst_iterations / (1 + self.burst_iterations)
        if self.burst_share > most:
            raise ConfigError(
                f"straggler.burst_share must be at most {most:.3g} with burst_iterations = {self.burst_iterations:g},"
                f" got {self.burst_share:g}: an iteration without blocking comes between two bursts"
            )


class ShockSection(Section, frozen=True):
    """Periods in which every gradient that some workers begin takes longer; several entries add up."""

    workers: tuple[WholeNumber, ...]  # as straggler.workers
    blocking_ms: Positive  # the additional time
    for_ms: Positive  # length of a period
    share: Probability  # share of all time that the periods take
    common: bool | Literal["rack"] = (
        True  # true: the same periods for all of these workers; "rack": for those of one rack;
    )
    # false: separate periods for each worker

    def draws(self, rank: int, job: JobSection) -> tuple[int, ...]:
        """Return the part of the seed that differs between workers with separate periods."""
        if self.common == "rack":
            return (rank // (job.workers // job.racks),)
        return () if self.common else (rank,)
