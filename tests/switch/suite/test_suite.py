"""Every script in programs/ on every target that is here: NAME.stf with NAME.json, p4c's output for NAME.p4."""

from pathlib import Path

import pytest

from tests.switch.suite.script import run_script
from tests.switch.suite.targets import TARGETS

SCRIPTS = sorted((Path(__file__).parent / "programs").glob("*.stf"))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
@pytest.mark.parametrize("target", TARGETS)
def test_script(script: Path, target: str) -> None:
    outcome = run_script(script, target)
    assert outcome.verdict == "passed", "\n".join(outcome.reasons)
