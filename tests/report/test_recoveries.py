"""Recoveries are added up over controllers and switches that restart at 0."""

from typing import Any

import pytest

from kofn.report.recoveries import recoveries, total
from kofn_common.results.event_log import LoggedEvent


def status(uptime_s: float, attachments: list[int], regroups: int = 0, corrupted: int = 0) -> dict[str, Any]:
    workers = [{"rank": rank, "attachments": number} for rank, number in enumerate(attachments)]
    counters = {"BAD_CHECKSUM": corrupted}
    return {"uptime_s": uptime_s, "regroups": regroups, "worker": workers, "counters": counters}


@pytest.mark.parametrize(
    ("counts", "expected"), [([], 0), ([0, 0], 0), ([1, 3], 3), ([1, 3, 0, 2], 5), ([4, 4, 1, 1, 0], 5)]
)
def test_counter_that_restarts_is_added_up(counts: list[int], expected: int) -> None:
    assert total(counts) == expected


def test_first_attachment_is_no_rejoin() -> None:
    assert recoveries([status(1.0, [1, 1]), status(2.0, [1, 1])], []).rejoins == 0


def test_recoveries_are_counted_across_a_new_controller() -> None:
    statuses = [status(1, [1, 1]), status(9, [1, 2], 1, 5), status(0.5, [0, 1], 0, 5), status(3, [1, 1], 2, 1)]
    story = [LoggedEvent(time=1.0, iteration=3, action=what, name="controller") for what in ("kill", "start")]
    found = recoveries(statuses, story)
    assert (found.restarts, found.rejoins, found.regroups, found.switch_checksum_errors) == (1, 3, 3, 6)


def test_no_status_gives_no_recoveries() -> None:
    assert recoveries([], []).rejoins == 0
