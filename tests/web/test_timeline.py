"""Frames from a run's files: their content, and that an active run gives the same frames as a finished one."""

import json
import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kofn.web.frames import Frame, Span
from kofn.web.reader import RunReader
from kofn.web.status_news import StatusNews
from kofn.web.timeline import FINE_FRAMES, FRAME_S, LAG_S, next_frame
from kofn.web.worker_track import WorkerTrack, phase_at, span_of
from kofn_common.config.errors import ConfigError
from kofn_common.results.folder import RunFolder
from kofn_common.results.worker_metrics import Iteration
from tests.web.lab import BYTES, SAMPLE_S, recorded


def frames_of(reader: RunReader) -> list[Frame]:
    return [msgspec.json.decode(frame, type=Frame) for frame in reader.frames]


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return recorded(tmp_path / "run")


@pytest.fixture
def frames(folder: RunFolder) -> list[Frame]:
    reader = RunReader(folder.path, over=lambda: True)
    reader.poll()
    assert reader.over
    return frames_of(reader)


def test_every_iteration_is_in_one_frame(frames: list[Frame]) -> None:
    for trial in (0, 1):
        own = [frame for frame in frames if frame.trial == trial]
        assert [point.iteration for frame in own for point in frame.points] == list(range(1, 201))
        spans = [sum(len(frame.workers[rank].spans) for frame in own) for rank in range(4)]
        assert spans == [200, 200, 180 if trial == 0 else 200, 200]


def test_worker_is_killed_until_it_trains_again(frames: list[Frame]) -> None:
    states = [frame.workers[2].state for frame in frames if frame.trial == 0]
    assert list(dict.fromkeys(states)) == ["starting", "training", "killed"]
    assert states[-1] == "training"


def test_times_are_relative_to_the_trial(frames: list[Frame], folder: RunFolder) -> None:
    assert [frame.time_s for frame in frames if frame.trial == 1][:3] == [0.0, FRAME_S, 2 * FRAME_S]
    first = json.loads(folder.trials[0][0].metrics(0).read_text().splitlines()[0])
    assert frames[1].points[0].time_s == pytest.approx(first["time"] - first["started"], abs=1e-4)
    assert all(point.time_s <= frame.time_s for frame in frames for point in frame.points)


def test_iteration_times_add_up(frames: list[Frame]) -> None:
    points = [point for frame in frames if frame.trial == 0 for point in frame.points]
    assert sum(point.iteration_ms for point in points) == pytest.approx(1e3 * points[-1].time_s, rel=1e-3)


def test_frames_have_k_estimates_and_truth(frames: list[Frame]) -> None:
    last = [frame for frame in frames if frame.trial == 0][-1]
    assert (last.k, last.objective, last.iteration) == (3, "throughput", 200)
    assert [worker.injected_ms for worker in last.workers] == [1.0, 60.0, 1.0, 1.0]
    slow = last.workers[1]
    assert slow.lambda_ms == pytest.approx(60, abs=25)
    assert (slow.low_ms or 0) < (slow.lambda_ms or 0) < (slow.high_ms or 0)
    assert last.workers[1].late > last.workers[0].late
    assert last.accuracy == pytest.approx(0.97, abs=0.01)
    assert last.predicted_ms is not None


def test_rates_of_links_follow_the_samples(frames: list[Frame]) -> None:
    later = [frame for frame in frames if frame.trial == 1 and frame.time_s > 1]
    rate = 8e-6 * BYTES / SAMPLE_S
    assert all(worker.sent_mbps == pytest.approx(rate) for frame in later for worker in frame.workers)
    assert all(worker.received_mbps == pytest.approx(2 * rate) for frame in later for worker in frame.workers)


def test_slots_stay_until_the_next_sample(frames: list[Frame]) -> None:
    looks = [frame.slots for frame in frames if frame.trial == 1 and frame.time_s > 0.5]
    assert None not in looks
    assert [(slot.block, slot.closed, slot.present) for slot in looks[0]] == [(0, True, "1111"), (1, False, "1110")]


def test_events_appear_at_their_time(frames: list[Frame]) -> None:
    said = [(frame.time_s, event) for frame in frames if frame.trial == 0 for event in frame.events]
    assert all(event.time_s <= at < event.time_s + 2 * FRAME_S for at, event in said)
    assert [(event.kind, event.words) for _, event in said] == [
        ("k", "k is 3, was 4: less to wait for"),
        ("event", "worker-2 killed at iteration 40"),
        ("controller", "objective fixed:3 set by hand at iteration 50"),
    ]


@pytest.mark.slow
def test_active_run_gives_the_same_frames(folder: RunFolder, frames: list[Frame], tmp_path: Path) -> None:
    """All files grow line by line; the last line may be incomplete."""
    growing = tmp_path / "growing"
    shutil.copytree(folder.path, growing)
    lines = take_lines(growing, folder)
    over, at = False, 0.0
    reader = RunReader(growing, over=lambda: over, clock=lambda: at)
    for at, path, text in lines:  # noqa: B007  # the clock
        with path.open("a") as file:
            file.write(text[:-5])
            file.flush()
            reader.poll()
            file.write(text[-5:])
    over = True
    reader.poll()
    assert reader.over
    assert frames_of(reader) == frames


def take_lines(growing: Path, folder: RunFolder) -> list[tuple[float, Path, str]]:
    """Take every line of all trials' files out of `growing`, with its time, trial after trial."""
    taken: list[tuple[int, float, Path, str]] = []
    for number, (entry,) in enumerate(folder.trials):
        for path in (
            entry.status,
            entry.samples,
            entry.events,
            entry.decisions,
            *(entry.metrics(rank) for rank in range(4)),
        ):
            if path.exists():
                grown = growing / path.relative_to(folder.path)
                grown.unlink()
                time = 0.0
                for line in path.read_text().splitlines(keepends=True):
                    time = json.loads(line).get("time", time)
                    taken.append((number, time, grown, line))
    return [(time, path, line) for _, time, path, line in sorted(taken, key=lambda one: one[:2])]


def test_frames_of_an_active_run_are_slightly_delayed(folder: RunFolder) -> None:
    folder.trials[1][0].status.unlink()
    begin = json.loads(folder.trials[0][0].metrics(0).read_text().splitlines()[0])["started"]
    reader = RunReader(folder.path, over=lambda: False, clock=lambda: begin + 1.0)
    reader.poll()
    reader.close()
    assert frames_of(reader)[-1].time_s == pytest.approx(1.0 - LAG_S)
    assert not reader.over


def test_no_frames_come_between_two_trials(folder: RunFolder) -> None:
    """While the next trial is prepared no file changes."""
    folder.trials[1][0].status.unlink()
    now = 2_000.0
    reader = RunReader(folder.path, over=lambda: False, clock=lambda: now)
    reader.poll()
    frames = len(reader.frames)
    now += 60.0
    reader.poll()
    reader.close()
    assert len(reader.frames) == frames


def test_frames_are_thinned_out(frames: list[Frame]) -> None:
    time_s, count = 0.0, 0
    while time_s < 3600:
        time_s, count = next_frame(time_s), count + 1
    assert FINE_FRAMES < count < 4500


def test_folder_that_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"is no run's folder: run\.json: No such file"):
        RunReader(tmp_path, over=lambda: True)


def test_folder_of_several_seeds_is_refused(folder: RunFolder) -> None:
    folder.update_record(seeds=(1, 2))
    with pytest.raises(
        ConfigError, match=r"must be the folder of one run, got 2 runs with a seed each: .*/seed-1 for example"
    ):
        RunReader(folder.path, over=lambda: True)


def iteration(**changes: Any) -> Iteration:
    given = {"started": 10.0, "first_block_s": 0.03, "blocking_s": 0.02, "time": 10.05, "step_s": 0.01}
    return Iteration(**{"iteration": 3, "params": "", "k": 2, "count": 2, **given, **changes})


def test_phases_of_an_iteration_follow_its_times() -> None:
    span = span_of(iteration(), 10.0)
    assert span == Span(3, 0.0, 0.01, 0.03, 0.04, 0.05, False)
    times = (-0.01, 0.005, 0.02, 0.035, 0.045, 0.06)
    assert [phase_at(span, at) for at in times] == ["", "computing", "blocked", "waiting", "updating", ""]


def test_worker_that_gave_up_was_blocked_for_less() -> None:
    assert span_of(iteration(blocking_s=0.5), 10.0) == Span(3, 0.0, 0.0, 0.03, 0.04, 0.05, False)


def test_iteration_that_was_not_computed_has_no_phases() -> None:
    assert span_of(iteration(started=None), 10.0) is None


def test_statuses_give_news() -> None:
    news = StatusNews()
    status: dict[str, Any] = {"worker": [{"rank": 0, "state": "training"}], "objective": "progress", "changes": []}
    change = {"iteration": 4, "k": 2, "previous_k": 4, "reason": "cheaper"}
    assert list(news.of(status)) == []
    assert list(news.of({**status, "changes": [change]})) == [("k", "k is 2, was 4: cheaper")]
    assert list(news.of({**status, "changes": [change]})) == []
    lost = {**status, "worker": [{"rank": 0, "state": "lost"}], "waiting": "regrouping: worker 0"}
    assert list(news.of(lost)) == [
        ("worker", "worker 0 is lost, was training"),
        ("controller", "waiting: regrouping: worker 0"),
    ]


def test_late_share_is_that_of_the_workers_gradients() -> None:
    """Iterations that a worker catches up over have no gradient of the worker."""
    track = WorkerTrack(2)
    for number, given in enumerate(({"late": True}, {"late": True, "computed": False}, {"late": False}), 1):
        track.finished(iteration(iteration=number, **given), 0.0)
    for number in (4, 5, 6):
        track.finished(iteration(iteration=number, computed=False, started=None), 0.0)
    frame = track.frame("")
    assert (frame.late, frame.late_share) == (2, 0.667)
