"""Claims of an experiment file, judged by made-up results."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from kofn.experiments.claims import Verdict, verdicts
from tests.experiments.given import GivenResults

FILE = """
[experiment]
name = "claims"
[axes]
"job.workers" = [4, 8]
[[contender]]
name = "new"
trial = "progress"
[[contender]]
name = "old"
trial = "all"
[[contender]]
name = "older"
trial = "all"
[[claim]]
text = "so it is"
"""


def judged(folder: Path, claim: str, rows: Mapping[tuple[int, str], Sequence[float | None]]) -> list[Verdict]:
    """Return the verdicts on a claim; `rows` has values of `column`, seed by seed."""
    path = folder / "claims.toml"
    path.write_text(FILE + claim)
    column = claim.partition('column = "')[2].partition('"')[0]
    given = [
        {"job.workers": workers, "contender": name, "seed": seed, column: value}
        for (workers, name), values in rows.items()
        for seed, value in enumerate(values, 1)
    ]
    return verdicts(GivenResults(path, given))


def test_ratio_to_another_contender_has_bounds(tmp_path: Path) -> None:
    claim = 'column = "duration_s"\ncontender = "new"\nof = "old"\nat_most = 1.1\n'
    (one,) = judged(tmp_path, claim, {(4, "new"): [2.0, 3.3], (4, "old"): [2.0, 3.0]})
    assert one.holds and one.numbers.startswith("1.05 (") and " times that of old" in one.numbers
    assert one.numbers.endswith("its interval does not exclude the opposite (job.workers = 4)")
    (one,) = judged(tmp_path, claim, {(4, "new"): [2.2, 3.5], (4, "old"): [2.0, 3.0]})
    assert one.holds is False


def test_ratio_to_the_best_of_several_takes_those_that_were_run(tmp_path: Path) -> None:
    claim = 'column = "duration_s"\ncontender = "new"\nof = ["old", "older"]\nat_most = 1\neach = true\n'
    rows = {(4, "new"): [2.0], (4, "old"): [3.0], (4, "older"): [1.0], (8, "new"): [2.0], (8, "old"): [4.0]}
    four, eight = judged(tmp_path, claim, rows)
    assert (four.claim, four.holds, four.numbers) == ("so it is (job.workers = 4)", False, "2.00 times that of older")
    assert (eight.claim, eight.holds, eight.numbers) == ("so it is (job.workers = 8)", True, "0.50 times that of old")
    (four,) = judged(tmp_path, claim, {(4, "new"): [2.0]})
    assert (four.holds, four.numbers) == (None, "needs runs of old or older")


@pytest.mark.parametrize(
    ("new", "old", "holds", "numbers"),
    [
        ([None, 2.0], [2.0, 2.0], False, "1.00 times, new never in 1 of 2 seeds"),
        ([2.0, 2.0], [None, 2.0], True, "1.00 times, old never in 1 of 2 seeds"),
        ([None, 2.0], [None, 2.0], False, "1.00 times, old never in 1 of 2 seeds, new never in 1 of 2 seeds"),
        ([2.0, 2.0], [None, None], True, "-, old never in 2 of 2 seeds"),
    ],
)
def test_target_that_was_never_reached_came_infinitely_late(
    tmp_path: Path, new: list[float | None], old: list[float | None], holds: bool, numbers: str
) -> None:
    claim = 'column = "time_to_target_s"\nfaster = "new"\nslower = "old"\nat_least = 1\neach = true\n'
    (one,) = judged(tmp_path, claim, {(4, "new"): new, (4, "old"): old})
    assert (one.holds, one.numbers) == (holds, numbers)


def test_unsound_training_shows_nothing(tmp_path: Path) -> None:
    path = tmp_path / "claims.toml"
    path.write_text(FILE + 'column = "duration_s"\ncontender = "new"\nat_most = 2\neach = true\n')
    row = {"job.workers": 4, "contender": "new", "seed": 1, "duration_s": 1.0}
    (one,) = verdicts(GivenResults(path, [{**row, "objective_fault": "ValueError: broken"}]))
    assert (one.holds, one.numbers) == (False, "a training is not sound: ValueError: broken")


def test_missing_value_proves_nothing(tmp_path: Path) -> None:
    claim = 'column = "predicted_iteration_s"\nfaster = "new"\nslower = "old"\nat_least = 1\neach = true\n'
    for new, old in (([None], [1.0]), ([1.0], [None]), ([None], [None])):
        (one,) = judged(tmp_path, claim, {(4, "new"): new, (4, "old"): old})
        assert one.holds is False and "missing in 1 of 1 seeds" in one.numbers
