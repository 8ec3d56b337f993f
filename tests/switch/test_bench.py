"""The switch's benchmarks and its soak test in short form; their speed does not matter here."""

import json
import re
import subprocess
import sys
from typing import Any

import pytest

pytestmark = pytest.mark.root


def printed(*words: str, codes: tuple[int, ...] = (0,)) -> str:
    done = subprocess.run([sys.executable, "-m", *words], check=False, capture_output=True, text=True)
    assert done.returncode in codes, done.stdout + done.stderr
    return done.stdout


def result(*words: str, codes: tuple[int, ...] = (0,)) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(printed(*words, "--json", codes=codes))
    return found


@pytest.mark.long
def test_time_of_a_packet_is_given_by_stage() -> None:
    row = printed("bench.packet_time", "--ports", "2", "--values", "2048", "--rounds", "1").splitlines()[-1]
    assert row.split()[:3] == ["2", "|", "2048"]
    receive, program, checksum, send, whole, *reflector = map(float, row.split("|")[2].split())
    assert min(receive, program, send, *reflector) > 0
    assert receive + program + checksum + send == pytest.approx(whole, abs=0.03)  # each value is rounded


@pytest.mark.long
def test_packets_arrive_through_an_lpm_entry() -> None:
    lines = printed("bench.forwarding", "--rounds", "1").splitlines()
    counts = re.fullmatch(r"embedded: ([\d,]+) packets a second of ([\d,]+) sent", lines[0])
    assert counts is not None
    assert int(counts[1].replace(",", "")) > 1000


def test_every_case_has_rates_and_ratios() -> None:
    targets = ["--target", "embedded", "--target", "reflector"]
    few = ["--rounds", "2", "--seconds", "0.05", "--ports", "3"]
    # exit code 1: a goal is missed, which is no failure here
    found = result("bench.switch_loop", *targets, *few, codes=(0, 1))
    assert [(case["ports"], case["values"]) for case in found["cases"]] == [(3, 256), (3, 2048)]
    for case in found["cases"]:
        assert set(case["ratios"]) == {"reflector"}
        for turns in case["rounds"].values():
            assert [turn["lost"] for turn in turns] == [0, 0]
            assert all(turn["results"] > 0 and turn["rate"] > 0 for turn in turns)


def test_votes_are_measured_beside_int8() -> None:
    few = ["--target", "embedded", "--rounds", "1", "--seconds", "0.05", "--ports", "5", "--values", "256"]
    found = result("bench.switch_loop", *few, "--lanes", "int8", "--lanes", "onebit")
    assert [case["lanes"] for case in found["cases"]] == ["int8", "onebit"]
    for case, elements in zip(found["cases"], (1024, 8192), strict=True):
        assert case["elements"]["embedded"] == pytest.approx(elements * case["rates"]["embedded"])
        (turn,) = case["rounds"]["embedded"]
        assert turn["lost"] == 0
        assert turn["results"] > 0


@pytest.mark.long
def test_sums_are_right_while_tables_are_updated() -> None:
    found = result(
        "bench.soak", "--seconds", "2", "--ports", "3", codes=(0, 1)
    )  # exit code 1: updates are late, which is no failure here
    assert (found["turn"]["wrong"], found["turn"]["lost"], found["differences"]) == (0, 0, [])
    assert found["turn"]["results"] > 0
    assert found["updates"] > 0
