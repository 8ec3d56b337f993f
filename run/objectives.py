"""The names of objectives, and the plug-ins among them: what a configuration may say, without loading any of them.

A plug-in is an entry point of an installed package in the group `kofn.objectives` (docs/CONTROL.md, Objectives).
"""

import re
from importlib.metadata import EntryPoint, entry_points
from typing import NamedTuple

from run.errors import ConfigError
from run.late import RULES, RuleName

GROUP = "kofn.objectives"

BUILT_IN = ("round", "accuracy", "all")
"""Names without a number; controller/choose.py has what they do, in the table of the same name."""

DEFAULT = "accuracy"
"""What chooses k where nothing else is said (docs/EXPERIMENTS.md says why)."""

RESERVED = (*BUILT_IN, "auto", "fixed", *RULES)
"""No plug-in is ever found under these."""

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,63}")
"""A plug-in's name: no number, which `kofn set-k` takes for a k."""


class Fixed(NamedTuple):
    """An objective that chooses nothing: k, and the rule for late gradients where it has one."""

    k: int
    rule: RuleName | None


def check_objective(text: str, workers: int, field: str) -> Fixed | None:
    """What 'fixed:K' or 'RULE:K' say, None for the other objectives; ConfigError for anything else."""
    if text in BUILT_IN:
        return None
    name, _, number = text.partition(":")
    if (name == "fixed" or name in RULES) and number.isdecimal() and 1 <= int(number) <= workers:
        return Fixed(int(number), RULES[name].name if name in RULES else None)
    if find_plugin(text) is None:
        raise ConfigError(f"{field} is {text!r}: {allowed(workers)}")
    return None


def allowed(workers: int) -> str:
    """The objectives that there are, for people: built in, then plug-ins, then how to add one."""
    rules = ", ".join(f"{rule}:K" for rule in RULES)
    built_in = f"{', '.join(map(repr, BUILT_IN))}, 'fixed:K' or {rules} with 1 <= K <= workers = {workers} is allowed"
    names = sorted({entry.name for entry in _plugins()})
    found = f", of plug-ins {', '.join(map(repr, names))}" if names else ""
    return f"{built_in}{found} (an installed package adds one by an entry point in the group {GROUP!r})"


def find_plugin(name: str) -> EntryPoint | None:
    """The plug-in of this name, not loaded; None where there is none. ConfigError where two packages give one."""
    found = [entry for entry in _plugins() if entry.name == name]
    if len({entry.value for entry in found}) > 1:
        values = " and ".join(sorted(entry.value for entry in found))
        raise ConfigError(f"objective {name!r} is given by {values}: one of these packages has to go")
    return found[0] if found else None


def _plugins() -> list[EntryPoint]:
    """Those that can be named; a built-in is not replaced."""
    return [entry for entry in entry_points(group=GROUP) if NAME.fullmatch(entry.name) and entry.name not in RESERVED]
