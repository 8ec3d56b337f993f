"""What is concluded from summaries: medians, misses, claims."""

import io
import math
from collections.abc import Sequence
from dataclasses import replace

import pytest
from rich.console import Console

from run import claims
from run.claims import Verdict
from run.conduct import WIDTH
from run.evidence import Findings, Row, Spread, find_row
from run.evidence_table import table
from run.summary import PassSummary
from run.verdicts import verdicts
from tests.run.test_run_chaos import SUMMARY


def passed(time_s: float | None, *, predicted_s: float | None = 0.05, **more: float) -> PassSummary:
    iterations = None if time_s is None else 100
    return replace(
        SUMMARY, time_to_target_s=time_s, iterations_to_target=iterations, predicted_iteration_s=predicted_s, **more
    )


def row(objective: str, *times_s: float | None, **more: float) -> Row:
    return find_row(objective, [passed(time_s, **more) for time_s in times_s])


def found(*rows: Row, scenario: str = "one-slow", **more: object) -> Findings:
    one = Findings(
        scenario=scenario,
        shifting=False,
        stationary=True,
        workers=2,
        target_accuracy=0.95,
        may_miss=False,
        late="stash",
        rows=rows,
    )
    return replace(one, **more)


def said(findings: Sequence[Findings], words: str) -> Verdict:
    (one,) = [verdict for verdict in verdicts(findings) if words in verdict.claim]
    return one


def test_figures_of_a_row_are_over_the_seeds() -> None:
    one = find_row("fixed:1", [passed(4.0), passed(9.0, predicted_s=0.06), passed(None, predicted_s=None)])
    assert one.time_s == Spread(median=9.0, low=4.0, high=math.inf)
    assert (one.trainings, one.reached, one.k) == (3, 2, 1)
    assert one.predicted_s == Spread(median=0.055, low=0.05, high=0.06)
    assert one.error is not None
    assert (one.error.low, one.error.high) == (pytest.approx(0.0), pytest.approx(0.2)), "measured: 0.05"
    assert find_row("round", [passed(1.0, predicted_s=None)]).error is None


def test_near_the_best_fixed_k() -> None:
    fixed = (row("fixed:1", 10.0, 12.0, 11.0), row("fixed:2", 20.0, 10.0, 40.0))
    near = said([found(*fixed, row("round", 10.9, 1.0, 99.0))], "within 10% of the best fixed k")
    assert near.holds
    assert near.numbers == "10.9 s against 11.0 s with fixed:1: x 1.09", "each seed against itself"
    assert not said([found(*fixed, row("round", 11.1, 1.0, 99.0))], "within 10% of the best fixed k").holds
    partly = said([found(fixed[1], row("round", 1.0, 1.0, 1.0))], "within 10% of the best fixed k")
    assert partly.claim.endswith("the best fixed k (of 2)")


def test_better_than_every_fixed_k_where_roles_shift() -> None:
    fixed = (row("fixed:1", 10.0), row("fixed:2", None))
    shifting = {"scenario": "shifting", "shifting": True, "stationary": False}
    assert said([found(*fixed, row("round", 9.9), **shifting)], "better than every fixed k").holds
    assert not said([found(*fixed, row("round", 10.0), **shifting)], "better than every fixed k").holds
    assert not said([found(*fixed, row("round", None), **shifting)], "better than every fixed k").holds
    assert all("predicted" not in one.claim for one in verdicts([found(*fixed, **shifting)]))


def test_nothing_is_claimed_of_objectives_where_k_goes_to_n_now_and_then() -> None:
    rows = (row("fixed:1", 10.0), row("fixed:2", 20.0), row("round", 9.9))
    assert verdicts([found(*rows, scenario="like-finish", stationary=False)]) == []


@pytest.mark.parametrize(("time_s", "holds"), [(10.0, True), (10.1, False), (None, False)])
def test_three_times_faster_than_everyone(time_s: float | None, holds: bool) -> None:
    rows = (row("fixed:2", 30.0), row("round", time_s))
    assert said([found(*rows)], "3 times faster").holds is holds
    assert all("3 times" not in one.claim for one in verdicts([found(*rows, scenario="equal")]))


def test_a_prediction_must_be_there_and_right_for_every_k() -> None:
    rows = (row("fixed:1", 1.0, predicted_s=0.0455), row("fixed:2", 1.0, predicted_s=0.0545))
    claim = said([found(*rows)], "predicted iteration time")
    assert claim.holds
    assert claim.numbers == "fixed:1 -9.0%, fixed:2 +9.0%"
    assert not said([found(rows[0], row("fixed:2", 1.0, predicted_s=0.0551))], "predicted").holds
    unknown = said([found(rows[0], row("fixed:2", 1.0, predicted_s=None))], "predicted")
    assert (unknown.holds, unknown.numbers) == (False, "fixed:1 -9.0%, fixed:2 unknown")


def test_the_stash_is_compared_with_dropping_k_by_k() -> None:
    stash = found(row("fixed:1", 5.0, owned_accuracy=0.9), row("fixed:2", 5.0), scenario="skewed-stash")
    drop = found(row("fixed:1", None, owned_accuracy=0.1), row("fixed:2", 4.0), scenario="skewed-drop", late="drop")
    first, second = (said([drop, stash], f"skewed, fixed:{k}") for k in (1, 2))
    assert first.holds
    assert first.numbers == (
        "5.0 s (best accuracy 95.0%, of one worker's classes 90.0%) against "
        "never (best accuracy 95.0%, of one worker's classes 10.0%)"
    )
    assert not second.holds
    never = [found(row("fixed:1", None), scenario="skewed-stash")]
    for accuracy, nearer in ((0.94, True), (0.96, False)):
        one = replace(row("fixed:1", None), best_accuracy=Spread.of([accuracy]))
        assert said([*never, found(one, scenario="skewed-drop", late="drop")], "with the stash").holds == nearer


def test_who_misses_the_target_fails_where_that_is_no_finding() -> None:
    rows = (
        row("fixed:1", 1.0, None),
        row("round", 1.0, None),
        find_row("fixed:2", [replace(SUMMARY, identity_error="replicas differ")]),
    )
    assert found(*rows).failures() == [
        "one-slow, fixed:2: replicas differ",
        "one-slow, round: 1 of 2 did not reach 95.0%",
    ], "a fixed k may be too small to get there"
    assert found(*rows, may_miss=True).failures() == ["one-slow, fixed:2: replicas differ"]


def test_the_table_fits_and_has_words_for_what_never_came() -> None:
    one = found(row("fixed:1", None, None, None), row("fixed:2", 30.0, 1234.0, None), row("round", 15.0, 15.0, 15.0))
    console = Console(width=WIDTH, record=True, file=io.StringIO())
    console.print(table(one))
    text = console.export_text()
    assert "…" not in text
    cells = {line.split()[0]: line.split() for line in text.splitlines() if line.strip()}
    assert cells["fixed:1"][1:6] == ["never", "never", "..", "never", "-"]
    assert cells["fixed:2"][1] == "1234.0"
    assert "82.27" in cells["round"], "how many times faster than k = n: 2, 82.27 and infinitely"
    assert claims.lines([Verdict(claim="a", holds=False, numbers="b")]) == ["NO   a: b"]
