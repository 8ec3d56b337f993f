"""The TOML file's [policy]: how k is chosen, and the rule for late gradients."""

from typing import Annotated

from msgspec import Meta

from kofn_common.config.late_rules import AGE_WEIGHT, LatePolicy, RuleChoice
from kofn_common.config.late_rules import DEFAULT as DEFAULT_RULE
from kofn_common.config.objectives import DEFAULT
from kofn_common.config.section import NotNegative, PositiveInt, Probability, Section, WholeNumber


class PolicySection(Section, frozen=True):
    """The choice of k."""

    objective: str = (
        DEFAULT  # of a run's first trial, if run.trials is empty, and of a controller that is started by hand
    )
    margin: NotNegative = 0.05  # change k or rule only when the predicted gain is above this share
    window: Annotated[int, Meta(ge=1, le=256)] = 16  # blocks that an estimate rests on
    decide_every: PositiveInt = 1  # iterations between decisions
    warm_up: Annotated[int, Meta(ge=1, le=256)] = 1  # reports from every live worker before the first decision
    include_after: WholeNumber | None = None  # await a worker after this many late iterations in a row; 0: never;
    # None: never; but under stash with a fixed k after so many that chance hardly explains them (6 if k is 3 of 4)
    late_gradient: RuleChoice = "auto"  # the rule for late gradients (late_rules.py); auto: the objective chooses
    age_weight: Probability | None = None  # factor of a late gradient's weight for each iteration of its age;
    # None: with late_gradient = "auto" the objective chooses, else 0.5
    age_limit: PositiveInt = 64  # most iterations of age of a gradient in a sum

    @property
    def late_policy(self) -> LatePolicy:
        """The policy for late gradients until another one is chosen."""
        rule = DEFAULT_RULE if self.late_gradient == "auto" else self.late_gradient
        return LatePolicy(rule, AGE_WEIGHT if self.age_weight is None else self.age_weight)
