"""Runs a script and its program, NAME.stf and NAME.json, on a target."""

from dataclasses import dataclass
from pathlib import Path

from kofn_switch.errors import ProgramError
from tests.switch.suite.runner import Run
from tests.switch.suite.stf import parse
from tests.switch.suite.targets import TARGETS
from tests.switch.suite.unsupported import Unsupported


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """A script's result: `verdict` is passed, refused (at loading, or a statement is unsupported) or wrong, with
    `reasons`.
    """

    verdict: str
    reasons: tuple[str, ...] = ()


def run_script(script: Path, target: str) -> Outcome:
    """Run a script on a target. Raises PlaceError, and the switch's errors after loading."""
    statements = parse(script.read_text())
    try:
        with TARGETS[target](script.with_suffix(".json"), statements) as switch:
            reasons = Run(switch).execute(statements)
    except (ProgramError, Unsupported) as error:
        return Outcome(verdict="refused", reasons=(str(error),))
    return Outcome(verdict="wrong" if reasons else "passed", reasons=tuple(reasons))
