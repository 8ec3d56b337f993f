"""The names of objectives in a configuration, without loading them (docs/howto/objective.md)."""

from typing import NamedTuple

from kofn_common.config.errors import ConfigError
from kofn_common.config.k_bounds import bound_k
from kofn_common.config.late_rules import RULES, RuleName
from kofn_common.config.plugins import Registry
from kofn_common.config.suggestion import did_you_mean
from kofn_common.numerals import is_numeral

DEFAULT = "progress"
"""The default objective (docs/explanation/experiments.md gives the reasons)."""

OBJECTIVES = Registry(
    kind="objective", folders=("kofn_controller/policy/objectives",), reserved=("auto", "fixed", *RULES)
)
"""An Objective, or the costs of one (controller/kofn_controller/policy/objective.py)."""


class Fixed(NamedTuple):
    """An objective that chooses nothing: k, and the rule for late gradients if it has one."""

    k: int
    rule: RuleName | None


def check_objective(text: str, workers: int, field: str) -> Fixed | None:
    """Return the k and rule of 'fixed:K' or 'RULE:K', and None for an objective's name. Raise ConfigError for other
    text."""
    name, colon, number = text.partition(":")
    if colon and (name == "fixed" or name in RULES):
        if not is_numeral(number) or int(number) != bound_k(int(number), workers):
            raise ConfigError(f"{field} must be {allowed(workers)}, got {text!r}")
        return Fixed(int(number), RULES[name].name if name in RULES else None)
    if not OBJECTIVES.known(text):
        meant = did_you_mean(text, [*OBJECTIVES.names, *(f"{rule}{colon}{number}" for rule in ("fixed", *RULES))])
        raise ConfigError(f"{field} must be {allowed(workers)}, got {text!r}{meant}")
    return None


def allowed(workers: int) -> str:
    """Return the known objectives as text."""
    rules = ", ".join(f"{rule}:K" for rule in RULES)
    return f"{', '.join(OBJECTIVES.names)}, module:Name, or fixed:K, {rules} with 1 <= K <= workers = {workers}"
