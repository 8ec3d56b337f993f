"""Every script in programs/ on every target that is here: NAME.stf with NAME.json, p4c's output for NAME.p4."""

from pathlib import Path

import pytest

from tests.switch.suite.script import run_script
from tests.targets import TARGETS

OURS = ["native", "reference"]
BMV2_TOO = [target for target in TARGETS if target != "embedded"]  # with its marks


SCRIPTS = sorted((Path(__file__).parent / "programs").glob("*.stf"))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
@pytest.mark.parametrize("target", [*OURS, *BMV2_TOO])
def test_script(script: Path, target: str) -> None:
    outcome = run_script(script, target)
    if target == "bmv2" and outcome.verdict == "refused":
        pytest.skip(outcome.reasons[0])
    assert outcome.verdict == "passed", "\n".join(outcome.reasons)
