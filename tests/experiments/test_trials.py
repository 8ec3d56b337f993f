"""The table of trials, its arms, and text tables."""

import io
import math
from pathlib import Path

import pandas as pd
from rich.console import Console

from kofn.experiments.arms import Arm, groups
from kofn.experiments.statistics import Spread
from kofn.experiments.tables import TextTable, milliseconds, shown
from kofn.experiments.trials import FILE, frame, write
from kofn.report.frames import summary_columns
from tests.experiments.test_chaos import SUMMARY

ROWS = [
    {"scenario": "slow", "seed": 1, "iterations_to_target": 70, "time_to_target_s": 4.0, "law": "pareto"},
    {"scenario": "fast", "seed": 1, "iterations_to_target": 60, "time_to_target_s": 2.0},
    {"scenario": "slow", "seed": 2, "iterations_to_target": None, "time_to_target_s": None, "law": "pareto"},
    {"scenario": "fast", "seed": 3, "iterations_to_target": 61, "time_to_target_s": 1.0},
]


def arms() -> list[Arm]:
    return [Arm(trials=rows) for rows in groups(frame(ROWS), "scenario")]


def test_arm_is_its_rows_in_table_order() -> None:
    slow, fast = arms()
    assert (slow.fact("scenario"), slow.seeds, fast.seeds) == ("slow", [1, 2], [1, 3])
    assert slow.column("iterations_to_target") == [70, None]
    assert [type(value) for value in slow.known("iterations_to_target")] == [int]
    assert (slow.known("law"), fast.known("law"), fast.known("nothing of that name")) == (["pareto"] * 2, [], [])
    assert list(groups(frame([]), "scenario")) == []


def test_missing_values_are_infinite() -> None:
    slow, fast = arms()
    assert slow.values("time_to_target_s") == [4.0, math.inf]
    assert slow.spread("time_to_target_s") == Spread(median=math.inf, low=4.0, high=math.inf)
    assert slow.known_spread("time_to_target_s") == Spread(median=4.0, low=4.0, high=4.0)
    assert fast.known_spread("law") is None
    assert (slow.reached, fast.reached) == (1, 2)
    assert slow.pairs(fast, "time_to_target_s") == [(4.0, 2.0)], "only the seed of both trials is compared"


def test_notebook_reads_the_table(tmp_path: Path) -> None:
    write(frame(ROWS), tmp_path)
    read = pd.read_csv(tmp_path / FILE)
    assert list(read) == ["scenario", "seed", "iterations_to_target", "time_to_target_s", "law"]
    assert read.groupby("scenario")["time_to_target_s"].median().to_dict() == {"fast": 1.5, "slow": 4.0}
    assert read["time_to_target_s"].isna().tolist() == [False, False, True, False]


def test_summary_is_flattened() -> None:
    columns = summary_columns(SUMMARY)
    assert columns["retransmissions"] == 1234
    assert columns["owned_accuracy"] is None
    assert not {"late_by_worker", "k_iterations", "compressed"} & set(columns)


def test_cells_describe_missing_values() -> None:
    assert [shown(value) for value in (1.0, None, math.nan, math.inf)] == ["1.00", "-", "-", "never"]
    assert [milliseconds(value) for value in (0.0123, None, math.inf)] == ["12.3 ms", "-", "-"]


def test_failed_rows_are_red() -> None:
    table = TextTable(headings=["scenario"], cells=[["loss"], ["delay"]], failed=frozenset({1}))
    file = io.StringIO()
    Console(file=file, force_terminal=True, color_system="standard", no_color=False).print(table)
    assert "\x1b[31mdelay" in file.getvalue()
