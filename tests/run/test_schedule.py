"""Due times and order of events, their log, and impossible stories."""

from pathlib import Path

import msgspec
import pytest

from kofn.run.schedule import Schedule, action, check_story, late_joiners
from kofn_common.config.errors import ConfigError
from kofn_common.config.interventions import EventSection, LinkSection
from kofn_common.config.job import JobSection
from kofn_common.config.schema import Config
from kofn_common.results.event_log import LoggedEvent, killed_for_good, never_started, read_event_log, restarts

KILL = EventSection(at_iteration=40, kill="worker-2")
START = EventSection(at_iteration=40, start="worker-2", after_s=3.0)


def event(what: str, name: str = "worker-2", missed: str = "") -> LoggedEvent:
    return LoggedEvent(time=1.0, iteration=40, action=what, name=name, missed=missed)


def test_no_event_is_due_before_its_iteration() -> None:
    schedule = Schedule([KILL])
    schedule.reached(39, 1.0)
    assert schedule.due(1e9) == []
    assert not schedule.starting
    schedule.reached(41, 2.0)
    assert schedule.due(2.0) == [KILL]
    assert schedule.due(2.0) == [], "an event is due only once"
    assert not schedule.waiting


def test_delay_counts_from_the_first_worker_that_finished_the_iteration() -> None:
    schedule = Schedule([START, KILL])
    schedule.reached(40, 10.0)
    schedule.reached(41, 11.0)
    assert schedule.due(12.9) == [KILL]
    assert schedule.starting, "the start is certain, but not due yet"
    assert schedule.due(13.0) == [START]
    assert not schedule.starting


def test_events_due_together_are_ordered_by_iteration() -> None:
    events = [EventSection(at_iteration=i, objective=f"fixed:{i}") for i in (3, 1, 2)]
    schedule = Schedule(events)
    schedule.reached(7, 1.0)
    assert [action(event)[1] for event in schedule.due(1.0)] == ["fixed:1", "fixed:2", "fixed:3"]


def test_link_changes_are_due_in_turn_and_start_no_worker() -> None:
    slow, fast = (LinkSection(workers=(0, 2), mbps=mbps, at_iteration=40, after_s=mbps) for mbps in (2.5, 200.0))
    schedule = Schedule([fast, KILL, slow])
    schedule.reached(40, 10.0)
    assert not schedule.starting
    assert schedule.due(12.5) == [KILL, slow]
    assert schedule.due(210.0) == [fast]
    assert action(slow) == ("link", "worker-0, worker-2 (2.5 Mbit/s)")


def test_equal_events_happen_once_each() -> None:
    schedule = Schedule([KILL, KILL])
    schedule.reached(40, 1.0)
    assert schedule.due(1.0) == [KILL, KILL]
    assert not schedule.waiting


def test_worker_whose_first_event_is_a_start_joins_late() -> None:
    events = [
        EventSection(at_iteration=9, kill="worker-1"),
        EventSection(at_iteration=5, start="worker-1"),
        KILL,
        START,
    ]
    assert late_joiners(events) == {"worker-1"}


def test_fate_of_each_process_follows_from_the_events() -> None:
    story = [event("kill"), event("start"), event("kill", "switch"), event("objective", "all")]
    assert killed_for_good(story) == {"switch"}
    assert restarts(story) == 1
    assert restarts([event("start", "worker-3")]) == 0, "a late start is no recovery"
    assert killed_for_good([event("kill", missed="it has ended")]) == set()
    assert never_started([event("start", missed="no worker finished iteration 9")]) == {"worker-2"}
    assert never_started([event("start"), event("start", missed="it runs")]) == set()
    both_too_late = [event("kill", missed="the training was over"), event("start", missed="the training was over")]
    assert never_started(both_too_late) == set(), "the worker ran from the beginning to the end"
    late = event("late", missed="the training was over")
    assert never_started([event("start"), late]) == {"worker-2"}
    assert killed_for_good([event("start"), late]) == set()
    assert killed_for_good([event("kill"), event("start"), late]) == {"worker-2"}
    assert never_started([event("kill"), event("start"), late]) == set()
    assert never_started([event("kill"), event("start", missed="the training was over")]) == set()


def test_logged_events_are_read_back(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    assert read_event_log(path) == []
    story = [event("kill"), event("objective", "fixed:3")]
    path.write_bytes(b"".join(msgspec.json.encode(entry) + b"\n" for entry in story))
    assert read_event_log(path) == story


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        (event("kill"), "worker-2 killed at iteration 40"),
        (event("start", "switch"), "switch started at iteration 40"),
        (event("objective", "fixed:3"), "objective fixed:3 set at iteration 40"),
        (event("kill", missed="it has ended"), "worker-2 not killed: it has ended"),
        (event("objective", "all", missed="away"), "objective all not set: away"),
        (event("late", missed="it was over"), "worker-2 came too late: it was over"),
    ],
)
def test_logged_events_are_described(entry: LoggedEvent, words: str) -> None:
    assert entry.words == words


@pytest.mark.parametrize(
    ("events", "words"),
    [
        (
            [KILL, EventSection(at_iteration=50, kill="worker-2")],
            "event.kill: 'worker-2' must run at iteration 50, but it does not then",
        ),
        ([KILL, START, START], "event.start: 'worker-2' must not run at iteration 40, but it does then"),
        (
            [EventSection(at_iteration=1, start="switch")],
            "event.start: 'switch' must not run at iteration 1, but it does then",
        ),
        (
            [EventSection(at_iteration=1, start="worker-0")],
            "job.start_workers must be 1 to 3, got 4: worker-0 are started later",
        ),
        (
            [EventSection(at_iteration=1, start=f"worker-{rank}") for rank in range(4)],
            "one worker must be there from the beginning",
        ),
    ],
)
def test_impossible_stories_are_refused(events: list[EventSection], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        check_story(Config(event=tuple(events), job=JobSection()))


def test_possible_stories_are_accepted() -> None:
    check_story(Config(event=tuple([START, KILL, EventSection(at_iteration=9, kill="controller")]), job=JobSection()))
    check_story(Config(event=tuple([EventSection(at_iteration=1, start="worker-0")]), job=JobSection(start_workers=3)))
