"""JSON is written in one way, which every reader of kofn takes."""

import json
import re
from pathlib import Path

import msgspec
import numpy as np
import pytest

from kofn.report.recoveries import read_lines
from kofn.report.series import read_series
from kofn_common.json_text import json_text
from kofn_common.results.folder import RunFolder
from kofn_common.results.worker_metrics import read_trial
from kofn_common.rpc import kofn_pb2
from kofn_common.rpc.document import document
from kofn_host.training import Metrics
from tests.docs.markdown import ROOT
from tests.run.fake_run import simulate, write

OTHERS = {
    "common/kofn_common/config/dump.py",  # strings of TOML
    "kofn/run/lab/wheels.py",  # a script for another machine's Python, which has nothing but the standard library
    "switch/kofn_switch/commands/server.py",  # answers of simple_switch_CLI, which may have any characters
}
"""Files that may write with the module `json`."""


def test_only_json_text_and_msgspec_write_json() -> None:
    folders = ("kofn", "common", "switch", "host", "controller", "jobs", "pytorch")
    files = {path for name in folders for path in (ROOT / name).rglob("*.py") if "build" not in path.parts}
    writing = {str(path.relative_to(ROOT)) for path in files if re.search(r"\bjson\.dumps?\(", path.read_text())}
    assert writing == OTHERS


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -float("inf"), np.float64("nan")])
def test_number_that_is_not_finite_is_null(number: float) -> None:
    assert json_text([number]) == "[null]"
    assert msgspec.json.decode(json_text([number])) == [None]


def test_text_is_that_of_the_module_json() -> None:
    value = {"a": [1.5, 0.25, -0.0], "b": {"3": None}, "c": [], "d": True, "e": 'quoted "text"'}
    assert json_text(value) == json.dumps(value)
    assert json_text(value, indent=2) == json.dumps(value, indent=2)
    assert json_text(np.float64(0.1)) == "0.1"
    with pytest.raises(TypeError, match="object is not written as JSON"):
        json_text({"a": object()})


def test_report_takes_statuses_and_lines_with_numbers_that_are_not_finite(tmp_path: Path) -> None:
    folder, fake = RunFolder.create(tmp_path, ["all"]), simulate()
    write(folder, [fake])
    (entry,) = folder.jobs[0].trials
    expected = [kofn_pb2.Expected(k=4, iteration_s=float("inf"), predicted_s=float("nan"), cost=float("nan"))]
    status = kofn_pb2.Status(job=1, iteration=20, k=4, late_gradient="merge", expected=expected)
    with entry.status.open("a") as statuses:
        statuses.write(json_text(document(status)) + "\n")
    with Metrics(entry.metrics(0)) as metrics:
        metrics.write(**{**fake.lines[0][-1], "iteration": 201, "loss": float("nan")})
    assert read_lines(entry.status)[-1]["expected"][0]["iteration_s"] is None
    workers = read_trial(entry, 4)
    assert workers[0].iterations[-1].loss is None
    series = read_series(entry, workers, "all")
    assert not np.isnan(series.expected_ms.y).any()
