"""`kofn experiment protocols`: its scenarios, its switch memory, and a real comparison."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from rich.console import Console

from kofn.experiments.matrix import Cell, run_cells
from kofn.experiments.protocols.contenders import CLEAN, COLLECTIVES, EXAMPLES, SITUATIONS, ProtocolContender
from kofn.experiments.protocols.tables import COSTS, protocol_arms, verdicts
from kofn.run.errors import RunError
from kofn.run.plan import RunPlan
from kofn_common.config.job import JobSection
from kofn_common.config.plugins import look_in
from kofn_controller.p4runtime.data_plane import data_plane_of
from tests.run.real_run import KOFN, OWN_NETWORK

UNUSED = ("leaf", "measure", "words", "votes")
"""Parts of kofn.p4 without memory of a slot besides its sum, where there is one switch."""


@pytest.fixture(autouse=True)
def examples() -> None:
    look_in(str(EXAMPLES))


@pytest.mark.parametrize("name", COLLECTIVES)
def test_every_scenario_is_a_valid_configuration(name: str) -> None:
    scenarios = [ProtocolContender(name=name).scenario(situation, [], None) for situation in SITUATIONS]
    assert len({scenario.name for scenario in scenarios}) == len(SITUATIONS)
    assert [one.config.fault[0].drop for one in scenarios if one.config.fault] == [0.0001, 0.001, 0.01, 0.1]
    assert {one.config.job.slots for one in scenarios} == {4, 8, 16, 64}
    assert [len(one.others) for one in scenarios if one.config.job.workers == 2] == [0, 1]


@pytest.mark.parametrize("collective", sorted({*COLLECTIVES.values()}))
def test_bits_of_a_slot_are_those_of_the_programs_registers(collective: str) -> None:
    plane = data_plane_of([collective])
    registers = json.loads(plane.compiled.blob.read_text())["register_arrays"]
    own = [one for one in registers if not any(f"ingress.{part}" in one["name"] for part in UNUSED)]
    most = min(one["size"] for one in own) if plane.holds_k else 4096
    bits = sum(one["bitwidth"] * (1 if plane.holds_k else one["size"] // most) for one in own)
    bits += 4 * 2048 if plane.holds_k else 0
    assert plane.slot_bits(JobSection(words=4)) == bits


def test_death_in_a_run_that_does_not_begin_is_no_finding(tmp_path: Path) -> None:
    scenario = ProtocolContender(name="kofn").scenario("death", [], None)

    def carry_out(plan: RunPlan, console: Console) -> Any:
        raise RunError("another run is active")

    cell = Cell(scenario=scenario, seed=1, folder=tmp_path / "death" / "seed-1")
    (result,) = run_cells([cell], carry_out, Console(quiet=True))
    assert (result.trials, result.error) == ((), "FAILED: another run is active")


def test_unknown_memory_is_neither_shown_nor_compared() -> None:
    trials = pd.DataFrame(
        {
            "protocol": ["kofn", "mine"],
            "job_collective": ["switch", "mine:Mine"],
            "memory_bytes": [4096, None],
            "situation": CLEAN,
            "reduce_s": 1.0,
            "worker_up_bytes": 9.0,
        }
    )
    arms = protocol_arms(trials.convert_dtypes())
    assert [COSTS["memory"](one) for one in arms] == ["4 kB", "-"]
    assert not any("in the switch" in verdict.claim for verdict in verdicts(arms))


@pytest.mark.root
@pytest.mark.long
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: network namespaces")
def test_protocols_are_compared_in_one_network(tmp_path: Path) -> None:
    arguments = ["--protocol", "kofn", "--protocol", "switchml", "--scenario", "clean", "--scenario", "loss-0.1"]
    arguments += ["--scenario", "death"]
    command = ["-c", KOFN, "experiment", "protocols", *arguments, "--seeds", "1", "--out", str(tmp_path / "out")]
    run = subprocess.run(
        [*OWN_NETWORK, sys.executable, *command, "--set", "run.max_iterations=4", "--json"],
        capture_output=True,
        text=True,
        env={**os.environ, "KOFN_STATE_DIR": str(tmp_path / "state")},
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert "Goodput under loss" in run.stderr
    found = json.loads(run.stdout)
    rows = {row["protocol"]: row for row in found["rows"]}
    assert rows["switchml"]["memory_bytes"] > rows["kofn"]["memory_bytes"] > 64 * 1024
    assert all(0 < row["goodput"]["loss-0.1"]["median"] < 1 for row in rows.values())
    assert all(row["retransmissions"]["loss-0.1"]["median"] > 0 for row in rows.values())
    assert [row["goes_on_after_a_death"] for row in rows.values()] == [True, False]
    assert 0 < rows["kofn"]["pause_s"]["median"] < 10 and 0 <= rows["switchml"]["end_after_s"]["median"] < 10
    assert "worker 3 is gone: its connection has ended" in run.stderr
    assert {one["claim"] for one in found["claims"]} >= {"kofn sends no more bytes than switchml"}
