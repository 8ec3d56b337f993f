"""A switch under load."""

import json
import subprocess
import sys

import pytest


@pytest.mark.root
def test_switch_carries_a_load() -> None:
    options = ["--workers", "2", "--seconds", "0.05", "--turns", "2", "--values", "256"]
    argv = [sys.executable, "-m", "kofn.experiments.load", *options]
    turns = json.loads(subprocess.run(argv, capture_output=True, check=True, timeout=60).stdout)["turns"]
    assert len(turns) == 2
    assert all(turn["results"] > 0 and turn["lost"] == turn["wrong"] == 0 for turn in turns)
