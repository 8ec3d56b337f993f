"""The TOML file's [run]: the trials, their seeds, and when they end."""

import re
from typing import Annotated

from msgspec import Meta

from kofn_common.config.errors import ConfigError
from kofn_common.config.section import Finite, Positive, PositiveInt, Section, WholeNumber

NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,63}")
"""A run's name is part of a folder's name."""


class RunSection(Section, frozen=True):
    """The trials, with the same seed and stragglers, one after another."""

    name: str = "default"
    seed: Annotated[int, Meta(ge=0, le=2**63 - 1)] = 1
    seeds: Annotated[int, Meta(ge=1, le=1000)] = (
        1  # number of seeds of every trial, from run.seed on; a claim needs 3 or more
    )
    trials: tuple[
        str, ...
    ] = ()  # the trials' objectives; the last one is the baseline; empty: policy.objective, then "all";
    # empty and job.collective is not "switch": "all"
    target: Finite | None = (
        None  # value of the workload's metric that ends a trial; None: the workload's own, 0.95 for digits' accuracy
    )
    accuracy_over: Annotated[int, Meta(ge=1, le=1000)] = 1  # number of evaluations whose mean is a value of the metric
    evaluate_every: PositiveInt = 1  # iterations from one evaluation to the next; in between the metric is unknown
    max_iterations: PositiveInt = 1000
    shift_every: WholeNumber = 0  # iterations after which every worker's blocking goes to the next rank
    alone: bool = False  # also train one worker alone, beside the last trial, as a baseline of summing
    record: bool = False  # keep every contribution and result of every worker, for checking (large)
    checkpoint_every: WholeNumber = 0  # iterations from one checkpoint to the next; 0: none
    checkpoint_keep: PositiveInt = 2  # number of newest checkpoints that are kept
    trial_deadline_s: Positive = 900.0  # a trial that takes longer is stopped with an error

    def check(self) -> None:
        """Check that the name can be part of a folder's name."""
        if not NAME.fullmatch(self.name):
            raise ConfigError(f"run.name must be up to 64 letters, digits, '.', '_' and '-', got {self.name!r}")
