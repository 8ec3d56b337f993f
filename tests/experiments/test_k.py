"""Conclusions about the choice of rule and k from summaries: hindsight, other seeds, changes, claims."""

import io
import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from kofn.experiments import claims
from kofn.experiments.claims import Verdict, judge
from kofn.experiments.k.claims import CLAIMS
from kofn.experiments.k.columns import choice_columns
from kofn.experiments.k.hindsight import NEVER, Hindsight, Standing, constants, failures, hindsights
from kofn.experiments.k.tables import scenario_table, summary_table, world_table
from kofn.experiments.k.worlds import WORKERS, WORLDS, trials
from kofn.experiments.statistics import Spread
from kofn.experiments.trials import Row, frame
from kofn.report.frames import summary_columns
from kofn.report.in_force import InForce, in_force
from kofn.report.summary import TrialSummary
from kofn_common.config.objectives import check_objective
from tests.experiments.test_chaos import SUMMARY

WIDTH = 190
"""Terminal columns that the tables need."""

Rows = list[Row]
"""An objective's rows of the table of trials."""

BEGIN = InForce(0, "batch-sync", 0.5, 4)


def passed(time_s: float | None, *, predicted_s: float | None = 0.05, **more: Any) -> TrialSummary:
    iterations = None if time_s is None else 100
    known: dict[str, Any] = {
        "time_to_target_s": time_s,
        "iterations_to_target": iterations,
        "predicted_iteration_s": predicted_s,
    }
    return replace(SUMMARY, **{"share_by_worker": (0.5, 0.5), "in_force": (BEGIN,), **known, **more})


def row(objective: str, *times_s: float | None, **more: Any) -> Rows:
    return rows(objective, [passed(time_s, **more) for time_s in times_s])


def rows(objective: str, several: Sequence[TrialSummary]) -> Rows:
    return [
        {**summary_columns(one), **choice_columns(one), "objective": objective, "seed": seed}
        for seed, one in enumerate(several, 1)
    ]


FACTS: Row = {
    "scenario": "two-slow-8w-0.1",
    "world": "two-slow",
    "kind": "stationary",
    "workers": 8,
    "rate": 0.1,
    "target": 0.95,
}


def found(*several: Rows, **more: Any) -> Hindsight:
    (one,) = hindsights(frame([{**FACTS, **line, **more} for rows in several for line in rows]))
    return one


def alone(several: Rows) -> Standing:
    (one,) = found(several).standings
    return one


def standing(among: Hindsight, objective: str) -> Standing:
    one = among.standing(objective)
    assert one is not None
    return one


def said(findings: Sequence[Hindsight], words: str) -> Verdict:
    (one,) = [verdict for verdict in judge(CLAIMS, findings) if words in verdict.claim]
    return one


def test_figures_of_a_row_are_over_the_seeds() -> None:
    one = alone(rows("async:1", [passed(4.0), passed(9.0, predicted_s=0.06), passed(None, predicted_s=None)]))
    assert one.time == Spread(median=9.0, low=4.0, high=math.inf)
    assert (len(one.seeds), one.reached) == (3, 2)
    assert one.known_spread("predicted_iteration_s") == Spread(median=0.055, low=0.05, high=0.06)
    error = one.known_spread("prediction_error")
    assert error is not None
    assert (error.low, error.high) == pytest.approx((0.0, 0.2)), "the measured ratio is 0.05"
    assert alone(row("throughput", 1.0, predicted_s=None)).known_spread("prediction_error") is None
    assert alone(row("throughput", 1.0, share_by_worker=(0.05, 0.45, 0.5, 0.0))).mean("least_share") == 0.0
    assert alone(row("throughput", 1.0, share_by_worker=(0.1, 0.4, 0.5))).mean("least_share") == pytest.approx(0.3)


def test_best_in_hindsight_has_the_least_geometric_mean() -> None:
    lucky, steady, chosen = row("async:2", 1.0, 8.0), row("merge:4", 2.0, 2.0), row("progress", 2.0, 3.0)
    one = found(lucky, steady, chosen, row("all", 9.0, 9.0))
    assert one.best is not None
    assert one.best.objective == "merge:4"
    assert [fixed.objective for fixed in one.fixed] == ["async:2", "merge:4", "all"]
    assert [chooses.objective for chooses in one.adaptive] == ["progress"]
    ratios = standing(one, "progress").ratios
    assert ratios is not None
    assert (ratios.median, ratios.mean) == pytest.approx((1.25, math.sqrt(1.5)))


def test_missed_target_counts_as_a_multiple_of_the_fastest_time() -> None:
    one = found(row("async:2", None, 2.0), row("all", 4.0, 8.0), row("progress", 2.0, 2.0))
    assert one.best is not None
    assert one.best.objective == "async:2"
    ratios, others = standing(one, "async:2").ratios, standing(one, "all").ratios
    assert ratios is not None
    assert others is not None
    assert ratios.mean == 1.0
    assert others.mean == pytest.approx(math.sqrt(4.0 / (NEVER * 2.0) * NEVER)), "a time of 8 s counts as NEVER"
    missed = found(row("async:2", None), row("progress", 1.0))
    assert missed.best is None
    assert standing(missed, "progress").ratios is None


def test_choice_by_the_other_seeds_excludes_luck() -> None:
    """Each fixed choice is the best of one seed by luck; tuned on the other seed, the other one would be chosen."""
    first, second = row("async:2", 1.0, 2.0), row("merge:4", 2.0, 1.0)
    ratios = standing(found(first, second, row("progress", 2.0, 2.0)), "progress").ratios
    assert ratios is not None
    assert ratios.mean == pytest.approx(math.sqrt(2.0))
    assert ratios.others == pytest.approx(1.0), "2 s are compared with the 2 s of the other seed's best choice"
    single = standing(found(row("async:2", 1.0), row("progress", 1.0)), "progress").ratios
    assert single is not None
    assert single.others is None


def test_change_is_undone_when_the_earlier_choice_soon_returns() -> None:
    way = [(0, 4), (20, 6), (60, 4), (100, 6), (300, 4)]
    one = alone(row("progress", 1.0, in_force=tuple(InForce(at, "async", 0.5, k) for at, k in way)))
    assert one.mean("changes") == 4
    assert one.mean("undone") == 2, (
        "4 was left at 20 and taken again at 60, 6 was left at 60 and taken again at 100; 200 is too long after"
    )
    assert one.ends_with == "async:4"
    other_rule = (InForce(0, "async", 0.5, 4), InForce(9, "async", 1.0, 4), InForce(12, "batch-sync", 0.5, 4))
    assert alone(row("progress", 1.0, in_force=other_rule)).mean("undone") == 0
    assert alone(row("progress", 1.0, in_force=other_rule[:2])).ends_with == "async:4 (1)"


def test_claims_against_hindsight_hold_or_fail() -> None:
    fixed = (row("async:2", 1.0), row("all", 4.0))
    good = found(*fixed, row("progress", 1.04))
    bad = found(*fixed, row("progress", 1.2), scenario="equal-8w-0.1")
    assert said([good], "within 5% of the best").holds
    assert said([good], "within 15%").holds
    near = said([good, bad], "within 5% of the best")
    assert not near.holds
    assert near.numbers == "1 of 2, mean of medians x 1.12"
    assert said([good, bad], "within 15%").numbers == "1 of 2; worst x 1.20 in equal-8w-0.1"
    assert [cells[9] for cells in world_table([good, bad], "progress").cells] == ["yes", "NO"]


def test_fixed_choices_are_compared_over_all_scenarios() -> None:
    """async:2 of 8 workers and async:1 of 4 are the same share of n."""
    one = found(row("async:2", 1.0), row("merge:4", 2.0), row("all", 3.0), row("progress", 1.1))
    other = found(row("async:1", 3.0), row("merge:2", 1.0), row("all", 1.0), row("progress", 1.2), workers=4)
    assert constants([one, other]) == {
        "async:n/4": pytest.approx(math.sqrt(3.0)),
        "merge:n/2": pytest.approx(math.sqrt(2.0)),
        "all": pytest.approx(math.sqrt(3.0)),
    }
    claim = said([one, other], "faster than any one rule")
    assert claim.holds
    assert claim.numbers == "x 1.15 against x 1.41 with merge:n/2"
    lines = summary_table([one, other], "progress").cells
    assert [cells[:3] for cells in lines] == [
        ["4", "0.1", "1"],
        ["4", "all", "1"],
        ["8", "0.1", "1"],
        ["8", "all", "1"],
        ["all", "all", "2"],
    ]
    assert lines[-1][3:7] == ["0%", "50%", "1.15", "1.20"]


def test_claims_about_skewed_data_starvation_and_stability_hold_or_fail() -> None:
    fixed = (row("async:6", 4.0), row("all", 8.0))
    unlike = {"scenario": "owned-8w-0.1", "kind": "skewed"}
    faster = said([found(*fixed, row("progress", 4.0), **unlike)], "faster than k = n")
    assert faster.holds
    assert faster.numbers == "2.00 times; 1 of 1 reached the target"
    assert not said([found(*fixed, row("progress", None), **unlike)], "faster than k = n").holds
    starved = found(*fixed, row("progress", 4.0, share_by_worker=(0.999, 0.001)))
    assert said([found(*fixed, row("progress", 4.0))], "share of the sums").holds
    assert not said([starved], "share of the sums").holds
    restless = tuple(InForce(at, "async", 0.5, 4 + at % 20 // 10) for at in range(0, 100, 10))
    assert not said([found(*fixed, row("progress", 4.0, in_force=restless))], "stable").holds
    assert said([found(*fixed, row("progress", 4.0))], "stable").holds


def test_predictions_are_claimed_by_rule() -> None:
    several = (row("async:2", 1.0, predicted_s=0.0455), row("merge:4", 1.0, predicted_s=0.0551))
    assert said([found(*several)], "async:n/4").holds
    claim = said([found(*several)], "merge:n/2")
    assert not claim.holds
    assert claim.numbers == "+10.2% on average, worst +10.2%, 1 scenarios"
    assert all("predicted" not in one.claim for one in judge(CLAIMS, [found(*several, kind="changing")]))


def test_only_faults_of_a_training_fail() -> None:
    one = found(row("progress", None), rows("async:2", [passed(1.0, identity_error="replicas differ")]))
    assert failures([one]) == ["two-slow-8w-0.1, async:2: replicas differ"]


def test_tables_fit_and_describe_missing_values() -> None:
    one = found(
        row("async:2", None, None, None),
        row("batch-sync:4", 30.0, 1234.0, None),
        row("progress", 15.0, 15.0, 15.0),
        row("all", 20.0, 20.0, 20.0),
    )
    console = Console(width=WIDTH, record=True, file=io.StringIO())
    for table in (scenario_table(one), world_table([one], "progress"), summary_table([one], "progress")):
        console.print(table)
    text = console.export_text()
    assert "…" not in text
    cells = {line.split()[0]: line.split() for line in text.splitlines() if line.strip()}
    assert cells["async:2"][1:5] == ["never", "never", "..", "never"]
    assert cells["batch-sync:4"][1] == "1234.0"
    assert claims.lines([Verdict(claim="a", holds=False, numbers="b")]) == ["NO   a: b", claims.NOT_SHOWN]
    assert claims.lines([Verdict(claim="a", holds=True, numbers="b")]) == ["yes  a: b"]


@pytest.mark.parametrize("workers", WORKERS)
def test_compared_objectives_are_rules_with_a_k(workers: int) -> None:
    compared = trials(workers)
    assert len(compared) == len(set(compared))
    fixed = [one for name in compared if (one := check_objective(name, workers, name))]
    assert {one.rule for one in fixed} == {"async", "batch-sync", "merge"}
    assert all(1 <= one.k < workers for one in fixed)
    assert len(WORLDS) >= 16


def test_choices_in_force_are_listed(tmp_path: Path) -> None:
    status = {"job": 2, "iteration": 0, "late_gradient": "batch-sync", "age_weight": 0.5, "k": 4}
    decided = {"job": 2, "iteration": 9, "late_gradient": "async", "age_weight": 0.5, "k": 2, "reason": "progress: ..."}
    lines = [{"job": 2, "iteration": 5, "k": 4, "lambda_s": []}, decided, decided | {"job": 1, "iteration": 11}]
    lines += [decided | {"iteration": 12, "reason": "said again"}, decided | {"iteration": 20, "age_weight": 1.0}]
    path = tmp_path / "decisions.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"job": 2, "cut of')
    assert in_force([status], path) == (
        InForce(0, "batch-sync", 0.5, 4),
        InForce(9, "async", 0.5, 2),
        InForce(20, "async", 1.0, 2),
    )
    assert in_force([], path) == ()
    assert list(map(str, in_force([status], tmp_path / "nothing"))) == ["batch-sync:4"]
