"""examples/experiments/protocols.toml: its cells, the switch's memory, claims, and a real comparison."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from rich.console import Console

from kofn.experiments import modes
from kofn.experiments.cells import Cell, cells_of
from kofn.experiments.experiment_file import HOOKS, ExperimentFile
from kofn.run.errors import RunError
from kofn.run.plan import RunPlan
from kofn_common.config.job import JobSection
from kofn_common.config.plugins import look_in
from kofn_controller.p4runtime.data_plane import data_plane_of
from tests.experiments.given import EXAMPLES, GivenResults
from tests.run.real_run import KOFN, OWN_NETWORK

FILE = EXAMPLES / "protocols.toml"

UNUSED = ("leaf", "measure", "words", "votes")
"""Parts of kofn.p4 without memory of a slot besides its sum, where there is one switch."""


@pytest.fixture(autouse=True)
def examples() -> None:
    look_in(str(EXAMPLES.parent / "protocols"))


def test_every_protocol_is_in_every_situation() -> None:
    cells = cells_of(ExperimentFile.load(FILE, seeds=1), Path("out"))
    protocols: dict[str, list[Cell]] = {}
    for cell in cells:
        protocols.setdefault(cell.point.contender, []).append(cell)
    assert list(protocols) == ["kofn", "fixed", "switchml", "atp"]
    for name, own in protocols.items():
        assert len(own) == 11
        assert [cell.config.fault[0].drop for cell in own if cell.config.fault] == [0.0001, 0.001, 0.01, 0.1]
        assert {cell.config.job.slots for cell in own} == {4, 8, 16, 64}
        pairs = [cell for cell in own if cell.config.job.workers == 2]
        assert [[other.job.id for other in cell.other_configs] for cell in pairs] == [[], [2]]
        assert [cell.point.axes["situation"] for cell in own if cell.point.may_fail] == ["death"]
        k = {cell.config.job.workers: cell.config.run.trials for cell in own}
        assert k == ({4: ("fixed:3",), 2: ("fixed:1",)} if name == "fixed" else {4: ("all",), 2: ("all",)})


@pytest.mark.parametrize("collective", ["atp:Atp", "switch", "switchml:Switchml"])
def test_bits_of_a_slot_are_those_of_the_programs_registers(collective: str) -> None:
    plane = data_plane_of([collective])
    registers = json.loads(plane.compiled.blob.read_text())["register_arrays"]
    own = [one for one in registers if not any(f"ingress.{part}" in one["name"] for part in UNUSED)]
    most = min(one["size"] for one in own) if plane.holds_k else 4096
    bits = sum(one["bitwidth"] * (1 if plane.holds_k else one["size"] // most) for one in own)
    bits += 4 * 2048 if plane.holds_k else 0
    assert plane.slot_bits(JobSection(words=4)) == bits


def test_death_in_a_run_that_does_not_begin_is_no_finding(tmp_path: Path) -> None:
    file = ExperimentFile.load(FILE, seeds=1).only({"situation": ["death"], "contender": ["kofn"]})
    (cell,) = cells_of(file, tmp_path)

    def carry_out(plan: RunPlan, console: Console) -> Any:
        raise RunError("another run is active")

    result = modes._run(carry_out, cell, Console(quiet=True))
    assert cell.point.may_fail and (result.ok, result.error) == (False, "FAILED: another run is active")


def test_claims_compare_medians_with_protocols_of_another_kind() -> None:
    rows = [
        {"situation": situation, "contender": name, "seed": seed, "collective": name.replace("fixed", "kofn"),
         "reduce_s": reduce_s, "worker_up_bytes": 9.0, "memory_bytes": 4096 if name == "kofn" else None}
        for situation in ("clean", "loss-0.1", "death")
        for name, times in (("kofn", (1.0, 1.0, 9.0)), ("fixed", (0.5,) * 3), ("mine", (1.1, 1.1, 0.1)))
        for seed, reduce_s in enumerate(times, 1)
    ]  # fmt: skip
    found = GivenResults(FILE, rows)
    verdicts = {verdict.claim: verdict.holds for verdict in HOOKS.load("protocol_costs:claims")(found)}
    assert verdicts == {
        "clean: kofn's all-reduce is at least as fast as mine's": True,
        "loss-0.1: kofn's all-reduce is at least as fast as mine's": True,
        "kofn sends no more bytes than mine": True,
    }, "neither another k nor an unknown memory is compared"


def test_goodput_is_paired_by_seed() -> None:
    ExperimentFile.load(FILE)
    times = {"clean": (1.0, 4.0), "loss-0.1": (2.0, 4.0), "slow": (1.5, 5.0)}
    rows = [
        {"situation": situation, "contender": "kofn", "seed": seed, "reduce_s": time_s, "mean_iteration_s": time_s}
        for situation, both in times.items()
        for seed, time_s in enumerate(both, 1)
    ]
    found = GivenResults(FILE, rows)
    (row,) = HOOKS.load("protocol_costs:against_clean")(found).to_dict("records")
    assert row["loss-0.1"].startswith("0.71 (") and row["slow worker"].startswith("+707 ms (")


@pytest.mark.root
@pytest.mark.long
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: network namespaces")
def test_protocols_are_compared_in_one_network(tmp_path: Path) -> None:
    only = ["--only", "contender=kofn,switchml", "--only", "situation=clean,loss-0.1,death"]
    command = ["-c", KOFN, "experiment", str(FILE), *only, "--seeds", "1", "--out", str(tmp_path / "out"), "--json"]
    run = subprocess.run(
        [*OWN_NETWORK, sys.executable, *command],
        capture_output=True,
        text=True,
        env={**os.environ, "KOFN_STATE_DIR": str(tmp_path / "state")},
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert "Goodput under loss" in run.stderr
    rows = pd.read_csv(tmp_path / "out" / "results.csv").set_index(["contender", "situation"])
    memory, reduce_s = rows["memory_bytes"], rows["reduce_s"]
    assert memory["switchml", "clean"] > memory["kofn", "clean"] > 64 * 1024
    for name in ("kofn", "switchml"):
        assert reduce_s[name, "clean"] < reduce_s[name, "loss-0.1"]
        assert rows["retransmissions"][name, "loss-0.1"] > 0
    assert 0 < rows["pause_s"]["kofn", "death"] < 10 and 0 <= rows["end_after_s"]["switchml", "death"] < 10
    assert pd.isna(rows["end_error"]["kofn", "death"])
    assert "worker 3 is gone: its connection has ended" in run.stderr
    report = subprocess.run(
        [sys.executable, "-c", KOFN, "report", str(tmp_path / "out")], capture_output=True, check=False
    )
    assert report.returncode == 0, "the plug-ins are found by another process"
    claims = {one["claim"] for one in json.loads(run.stdout)["claims"]}
    assert "kofn sends no more bytes than switchml" in claims
