"""Runs every script in programs/ on every installed target: NAME.stf with NAME.json, p4c's output for NAME.p4."""

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.switch.suite.build import COMPILER, PROGRAMS, compile_program
from tests.switch.suite.script import run_script
from tests.targets import TARGETS

OURS = ["native", "reference"]
BMV2_TOO = [target for target in TARGETS if target != "embedded"]  # with its marks
MACRO = re.compile(r"[A-Z_0-9]+\(.*\)")
SCRIPTS = sorted(PROGRAMS.glob("*.stf"))


@pytest.mark.slow
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
@pytest.mark.parametrize("target", [*OURS, *BMV2_TOO])
def test_script(script: Path, target: str) -> None:
    outcome = run_script(script, target)
    if target == "bmv2" and outcome.verdict == "refused":
        pytest.skip(outcome.reasons[0])
    assert outcome.verdict == "passed", "\n".join(outcome.reasons)


def places(item: Any) -> Iterator[dict[str, Any]]:
    """Yield every source place that p4c noted."""
    if isinstance(item, dict):
        if "source_fragment" in item:
            yield item
        item = list(item.values())
    if isinstance(item, list):
        for part in item:
            yield from places(part)


def words(text: str) -> str:
    """Return the text without spaces and without JSON's forms of quotes."""
    return " ".join(text.replace('\\"', '"').split())


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_output_belongs_to_its_source(script: Path) -> None:
    """This needs no p4c: the text that the output quotes is in the source at that line, unless it is a macro."""
    lines = [words(line) for line in script.with_suffix(".p4").read_text().splitlines()]
    root = json.loads(script.with_suffix(".json").read_text())
    assert root["program"] == f"{script.stem}.p4"
    for place in places(root):
        line = lines[place["line"] - 1] if place["filename"] == root["program"] else ""
        if line and not MACRO.fullmatch(line):
            start = words(place["source_fragment"].splitlines()[0].removesuffix("..."))
            assert start in line, f"{place} is stale: run python -m tests.switch.suite.build {script.stem}"


@pytest.mark.skipif(shutil.which(COMPILER) is None, reason=f"{COMPILER} is not on the PATH")
def test_p4c_gives_the_committed_output(tmp_path: Path) -> None:
    for source in sorted(PROGRAMS.glob("*.p4")):
        copy = Path(shutil.copy(source, tmp_path))
        compile_program(copy)
        for suffix in (".json", ".p4info.txtpb"):
            made, kept = copy.with_suffix(suffix).read_text(), source.with_suffix(suffix).read_text()
            assert made == kept, f"stale: run python -m tests.switch.suite.build {source.stem}"
