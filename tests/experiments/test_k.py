"""examples/experiments/k.toml: hindsight, other seeds, changes, claims."""

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from examples.experiments import k_choice
from kofn.experiments.claims import Verdict
from kofn.experiments.experiment_file import ExperimentFile
from kofn.experiments.reader import frame
from kofn.report.frames import summary_columns
from kofn.report.in_force import InForce, in_force
from kofn.report.summary import TrialSummary
from kofn_common.config.objectives import check_objective
from tests.experiments.test_chaos import SUMMARY

FOLDER = Path(k_choice.__file__).parent

Rows = list[dict[str, object]]
"""A contender's trials, one for each seed."""

BEGIN = InForce(0, "batch-sync", 0.5, 4)

FACTS = {"world": "two-slow", "kind": "stationary", "job.workers": 8, "model.learning_rate": 0.1}


def passed(time_s: float | None, *, predicted_s: float | None = 0.05, **more: Any) -> TrialSummary:
    known: dict[str, Any] = {"time_to_target_s": time_s, "predicted_iteration_s": predicted_s}
    return replace(SUMMARY, **{"share_by_worker": (0.5, 0.5), "in_force": (BEGIN,), **known, **more})


def row(contender: str, *times_s: float | None, **more: Any) -> Rows:
    several = [passed(time_s, **more) for time_s in times_s]
    return [
        {**summary_columns(one), **k_choice.choice_columns(one), "contender": contender, "seed": seed}
        for seed, one in enumerate(several, 1)
    ]


def found(*several: Rows, **more: Any) -> pd.DataFrame:
    return k_choice.against_best(frame([{**FACTS, **line, **more} for rows in several for line in rows]))


def ratios(trials: pd.DataFrame, contender: str) -> pd.DataFrame:
    return trials[trials["contender"] == contender]


def said(several: Sequence[pd.DataFrame], words: str) -> Verdict:
    (one,) = [verdict for verdict in k_choice.judged(pd.concat(several)) if words in verdict.claim]
    return one


def test_best_in_hindsight_has_the_least_geometric_mean() -> None:
    lucky, steady, chosen = row("async:n/4", 1.0, 8.0), row("merge:n/2", 2.0, 2.0), row("progress", 2.0, 3.0)
    trials = found(lucky, steady, chosen, row("all", 9.0, 9.0))
    assert set(trials["best"]) == {"merge:n/2"}
    assert set(trials[trials["fixed"]]["contender"]) == {"async:n/4", "merge:n/2", "all"}
    assert list(ratios(trials, "progress")["ratio"]) == [1.0, 1.5]
    (one,) = k_choice.chosen(trials).to_dict("records")
    assert (one["median"], one["mean"]) == pytest.approx((1.25, math.sqrt(1.5)))


def test_missed_target_counts_as_a_multiple_of_the_fastest_time() -> None:
    trials = found(row("async:n/4", None, 2.0), row("all", 4.0, 8.0), row("progress", 2.0, 2.0))
    assert set(trials["best"]) == {"async:n/4"}
    assert list(ratios(trials, "async:n/4")["counted_s"]) == [k_choice.NEVER * 2.0, 2.0]
    assert list(ratios(trials, "all")["ratio"]) == [4.0 / 6.0, 3.0], "a time of 8 s counts as 6 s"
    missed = found(row("async:n/4", None), row("progress", 1.0))
    assert missed["best"].isna().all() and missed["ratio"].isna().all()


def test_choice_by_the_other_seeds_excludes_luck() -> None:
    """Each fixed choice is the best of one seed by luck; tuned on the other seed, the other one would be chosen."""
    trials = found(row("async:n/4", 1.0, 2.0), row("merge:n/2", 2.0, 1.0), row("progress", 2.0, 2.0))
    (one,) = k_choice.chosen(trials).to_dict("records")
    assert one["mean"] == pytest.approx(math.sqrt(2.0))
    assert one["others"] == pytest.approx(1.0), "2 s are compared with the 2 s of the other seed's best choice"
    single = found(row("async:n/4", 1.0), row("progress", 1.0))
    assert single["other_ratio"].isna().all()


def test_change_is_undone_when_the_earlier_choice_soon_returns() -> None:
    way = [(0, 4), (20, 6), (60, 4), (100, 6), (300, 4)]
    one = k_choice.choice_columns(passed(1.0, in_force=tuple(InForce(at, "async", 0.5, k) for at, k in way)))
    assert one["changes"] == 4
    assert one["undone"] == 2, (
        "4 was left at 20 and taken again at 60, 6 was left at 60 and taken again at 100; 200 is too long after"
    )
    assert one["ends_with"] == "async:4"
    other_rule = (InForce(0, "async", 0.5, 4), InForce(9, "async", 1.0, 4), InForce(12, "batch-sync", 0.5, 4))
    assert k_choice.choice_columns(passed(1.0, in_force=other_rule))["undone"] == 0
    assert k_choice.choice_columns(passed(1.0, in_force=other_rule[:2]))["ends_with"] == "async:4 (1)"
    assert k_choice.choice_columns(passed(1.0, share_by_worker=(0.1, 0.4, 0.5)))["least_share"] == pytest.approx(0.3)


def test_claims_against_hindsight_hold_or_fail() -> None:
    fixed = (row("async:n/4", 1.0), row("all", 4.0))
    good = found(*fixed, row("progress", 1.04))
    bad = found(*fixed, row("progress", 1.2), world="equal")
    assert said([good], "within 5% of the best").holds
    assert said([good], "within 15%").holds
    near = said([good, bad], "within 5% of the best")
    assert not near.holds
    assert near.numbers == "1 of 2, mean of medians x 1.12"
    assert said([good, bad], "within 15%").numbers == "1 of 2; worst x 1.20 in equal, 8 workers, rate 0.1"


def test_fixed_choices_are_compared_over_all_scenarios() -> None:
    one = found(row("async:n/4", 1.0), row("merge:n/2", 2.0), row("all", 3.0), row("progress", 1.1))
    other = found(
        row("async:n/4", 3.0), row("merge:n/2", 1.0), row("all", 1.0), row("progress", 1.2), **{"job.workers": 4}
    )
    assert k_choice.constant_means(pd.concat([one, other])).to_dict() == {
        "async:n/4": pytest.approx(math.sqrt(3.0)),
        "merge:n/2": pytest.approx(math.sqrt(2.0)),
        "all": pytest.approx(math.sqrt(3.0)),
    }
    claim = said([one, other], "faster than any one rule")
    assert claim.holds
    assert claim.numbers == "x 1.15 against x 1.41 with merge:n/2"


def test_claims_about_skewed_data_starvation_and_stability_hold_or_fail() -> None:
    fixed = (row("async:3n/4", 4.0), row("all", 8.0))
    unlike = {"world": "owned", "kind": "skewed"}
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
    several = (row("async:n/4", 1.0, predicted_s=0.0455), row("merge:n/2", 1.0, predicted_s=0.0551))
    assert said([found(*several)], "async:n/4").holds
    claim = said([found(*several)], "merge:n/2")
    assert not claim.holds
    assert claim.numbers == "+10.2% on average, worst +10.2%, 1 scenarios"
    assert all("predicted" not in one.claim for one in k_choice.judged(found(*several, kind="changing")))


@pytest.mark.parametrize("workers", [4, 8, 16])
def test_every_world_has_the_same_contenders_once(workers: int) -> None:
    file = ExperimentFile.load(FOLDER / "k.toml").only({"job.workers": [str(workers)]})
    points = file.points()
    assert {point.axes["world"] for point in points} == set(k_choice.WORLDS)
    trials = [point.config().run.trials[0] for point in points if point.axes["world"] == "equal"]
    one_rate = trials[: len(trials) // 3]
    assert len(one_rate) == len(set(one_rate)) == (10 if workers == 4 else 12)
    fixed = [one for name in one_rate if (one := check_objective(name, workers, name))]
    assert {one.rule for one in fixed} == {"async", "batch-sync", "merge"}
    assert all(1 <= one.k < workers for one in fixed)


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
