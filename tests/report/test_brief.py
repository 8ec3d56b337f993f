"""The table after a run has at most 14 rows and 80 columns, and its first lines sum up the run."""

import io
from dataclasses import replace

import pytest
from rich.console import Console

from kofn.report.brief import brief_rows, brief_tables, headlines
from kofn.report.in_force import InForce
from kofn.report.summary import Alone, RunSummary, Summary, TrialSummary
from kofn_host.workload import ACCURACY
from tests.experiments.test_chaos import SUMMARY

LATE = replace(
    SUMMARY,
    objective="source",
    time_to_target_s=2.5,
    iterations=102,
    mean_iteration_s=0.0243,
    k_iterations={3: 101, 4: 1},
    late_by_worker=(0, 57, 0, 45),
    entered_by_worker=(102.0, 59.0, 102.0, 60.0),
    summed_by_worker=(102.0, 46.25, 102.0, 60.0),
    discarded_by_worker=(0.0, 12.75, 0.0, 0.0),
    share_by_worker=(0.3, 0.2, 0.3, 0.2),
    in_force=(InForce(0, "merge", 1.0, 4), InForce(1, "merge", 1.0, 3)),
)
PROGRESS = replace(LATE, objective="progress", in_force=(InForce(0, "async", 0.5, 2), InForce(9, "batch-sync", 0.5, 3)))
ALL = replace(LATE, objective="all", time_to_target_s=6.9, late_by_worker=(0,) * 4, k_iterations={4: 88})
DEFAULT = Summary(
    job=1,
    metric=ACCURACY,
    trials=(LATE, PROGRESS, ALL),
    compresses=True,
    alone=Alone(time_to_target_s=5.5, iterations=430, duration_s=5.5),
)


def rows(summary: Summary) -> dict[str, list[str]]:
    return {label: cells for label, *cells in brief_rows(summary)}


def test_default_runs_table_fits_14_rows_and_80_columns() -> None:
    assert len(brief_rows(DEFAULT)) <= 14
    file = io.StringIO()
    (table,) = brief_tables(RunSummary(jobs=(DEFAULT,)))
    Console(file=file, width=80).print(table)
    lines = file.getvalue().splitlines()
    assert len(lines) == 1 + len(brief_rows(DEFAULT)), "all trials must be side by side, without folded cells"
    assert max(map(len, lines)) <= 80


def test_logged_number_of_a_script_is_a_row() -> None:
    logged = Summary(job=1, metric=None, trials=(replace(LATE, logged={"top1": 0.71236}), ALL))
    assert rows(logged)["top1, last"] == ["0.7124", "-"]
    assert ["top1, last", "0.7124", "-"] in logged.rows()


def test_first_lines_sum_up_the_run() -> None:
    alone, source, progress, late = headlines(DEFAULT)
    assert alone == "One worker alone: 95.0% accuracy after 5.5 s."
    assert source == "source: 95.0% accuracy after 2.5 s, 2.8 x faster than all and 2.2 x faster than one worker alone."
    assert progress.startswith("progress: ")
    assert late == (
        "progress: 57 gradients of worker 1 were late; of the 59 gradients that it finished 46.2 entered a sum,"
        " 12.8 lost their weight to age."
    )


def test_slower_trial_is_called_slower() -> None:
    assert DEFAULT.alone is not None
    quick = replace(DEFAULT, alone=replace(DEFAULT.alone, time_to_target_s=0.5))
    assert any(
        line.endswith("2.8 x faster than all and 5.0 x slower than one worker alone.") for line in headlines(quick)
    )


def test_cells_show_k_and_rule_and_where_late_gradients_went() -> None:
    found = rows(DEFAULT)
    assert found["k, and how often"] == ["3 in 99 %", "3 in 99 %", "4 in 100 %"]
    assert found["rule for late gradients"][:2] == ["merge", "async/batch-sync"]
    assert found["latest worker's in sums"] == ["1: 46 of 59", "1: 46 of 59", "none was late"]
    assert found["gradients in a sum, mean"][0] == "3.04"
    assert found["one worker alone / this"] == ["2.20", "2.20", "0.80"]


@pytest.mark.parametrize(
    ("alone", "words"),
    [
        (None, "source: "),
        (
            Alone(time_to_target_s=None, iterations=1000, duration_s=12.0),
            "One worker alone did not reach 95.0% accuracy",
        ),
    ],
)
def test_worker_alone_that_was_not_run_or_missed_the_target_is_described(alone: Alone | None, words: str) -> None:
    assert headlines(replace(DEFAULT, alone=alone))[0].startswith(words)
    assert ("one worker alone / this" in rows(replace(DEFAULT, alone=alone))) == (alone is not None)


def test_violations_are_in_the_table() -> None:
    broken: TrialSummary = replace(
        LATE, identity_error="parted", conservation_error="lost", starved_by_worker=(0, 9, 0, 0)
    )
    found = rows(replace(DEFAULT, trials=(broken, ALL)))
    assert found["STARVED"][0] == "worker 1 (9 gradients)"
    assert found["replicas bit-identical"][0] == found["gradients conserved"][0] == "NO"


def test_shares_of_many_workers_have_enough_digits() -> None:
    many = replace(ALL, share_by_worker=(1 / 1024,) * 1024)
    (cell,) = rows(replace(DEFAULT, trials=(many,)))["share of the sums"]
    assert cell == "0.0977 .. 0.0977, median 0.0977 %"
