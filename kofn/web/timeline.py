"""The frames of a job in a trial, from the trial's files, which may still grow.

Lines of all files are taken in the order of their times, so that a trial gives the same frames while it runs as
afterwards.
"""

import itertools
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from kofn.report.planned_changes import fault_changes, straggler_changes
from kofn.report.prediction import predicted_s
from kofn.report.recoveries import Status
from kofn.web.frames import EventFrame, Frame, IterationPoint, JobHeader
from kofn.web.status_news import News, StatusNews
from kofn.web.worker_track import WorkerTrack, phase_at, span_of
from kofn_common.config.schema import Config
from kofn_common.results.event_log import LoggedEvent
from kofn_common.results.folder import TrialFolder
from kofn_common.results.json_lines import decoded
from kofn_common.results.objective_notes import ObjectiveNote, objective_notes
from kofn_common.results.samples import Sample
from kofn_common.results.tail import LineTail
from kofn_common.results.worker_metrics import Iteration, Tail

FRAME_S = 0.1
FINE_FRAMES = 1200
"""The interval between frames doubles after so many frames, and again each time that the time has doubled. An hour has
about 4,100 frames."""

LAG_S = 0.3
"""The delay of frames during the run. After this delay, the lines of a frame's time are in the files."""

POINTS = 64
RECENT = 20
"""The number of iterations in a frame's mean iteration time."""

Entry = tuple[float, int, Any]
"""The time of a line, its number in the order of reading, and the line."""


class TypedTail(LineTail):
    """The new lines of a file as values of a type."""

    def __init__(self, path: Path, kind: Any) -> None:
        super().__init__(path)
        self._decoder = msgspec.json.Decoder(kind)

    def read(self) -> Iterator[Any]:
        return decoded(self.lines(), self._decoder.decode, self.path)


class NotesTail(LineTail):
    """Actions of operators and faults of objectives, from the controller's journal. The configuration's events are in
    another file."""

    def __init__(self, path: Path, job: int) -> None:
        super().__init__(path)
        self._job = job

    def read(self) -> Iterator[ObjectiveNote]:
        return (note for note in objective_notes(self, self._job) if not note.planned)


class Timeline:
    """Reads the files and gives frames, at every poll()."""

    def __init__(self, folder: TrialFolder, config: Config, header: JobHeader, *, trial: int) -> None:
        """Open the files; the first poll() reads them."""
        self._config, self._hosts, self._leaves, self._trial = config, header.hosts, header.leaves, trial
        self._uplinks: tuple[tuple[float, float], ...] = ((0.0, 0.0),) * len(header.leaves)
        workers = range(config.job.workers)
        self._metrics = [Tail(folder.metrics(rank)) for rank in workers]
        self._others: list[TypedTail | NotesTail] = [
            TypedTail(folder.status, Status),
            TypedTail(folder.events, LoggedEvent),
            TypedTail(folder.samples, Sample),
            NotesTail(folder.decisions, config.job.id),
        ]
        self._tracks = [WorkerTrack(rank) for rank in workers]
        self._news = StatusNews()
        self._stragglers = list(straggler_changes(config))
        self._faults = sorted(fault_changes(config.fault))
        self._waiting = deque[Entry]()  # lines that no frame has yet, in the order of time
        self._order = itertools.count()
        self._begin: float | None = None
        self._next_s = 0.0
        self._status: Status = {}
        self._sample: Sample | None = None
        self._slots: Sample | None = None
        self._iteration = self._k = 0
        self._finished_at = 0.0
        self._times_ms = deque[float](maxlen=RECENT)
        self._accuracy: float | None = None
        self._loss: float | None = None
        self._points: list[IterationPoint] = []
        self._events: list[EventFrame] = []

    def poll(self, now: float, *, over: bool) -> list[Frame]:
        """Return new frames up to the last line. While the trial is not `over`, the frames end LAG_S before the Unix
        time `now`."""
        self._read()
        if self._begin is None:
            self._begin = self._first_start()
        if self._begin is None:
            return []
        frames = []
        while self._waiting and (over or self._begin + self._next_s <= now - LAG_S):
            frames.append(self._frame(self._next_s))
            self._next_s = next_frame(self._next_s)
        return frames

    def close(self) -> None:
        for tail in self._metrics:
            tail.close()
        for file in self._others:
            file.close()

    @property
    def waiting(self) -> str:
        """Return the job's reason to wait before its first frame, from the lines read so far."""
        statuses = (line for _, _, line in reversed(self._waiting) if isinstance(line, dict))
        return str(next(statuses, {}).get("waiting", ""))

    def _read(self) -> None:
        """Take new lines of all files."""
        new = [
            (line.time, next(self._order), (rank, line))
            for rank, tail in enumerate(self._metrics)
            for line in tail.read()
            if isinstance(line, Iteration)
        ]
        for line in itertools.chain.from_iterable(file.read() for file in self._others):
            new.append((line["time"] if isinstance(line, dict) else line.time, next(self._order), line))
        if new:
            self._waiting = deque(sorted((*self._waiting, *new)))

    def _first_start(self) -> float | None:
        """Return the start of the first finished iteration."""
        lines = (line for _, _, line in self._waiting if isinstance(line, tuple))
        return next((iteration.started for _, iteration in lines if iteration.started is not None), None)

    def _frame(self, time_s: float) -> Frame:
        """Return a frame with all lines up to a time; later lines give the workers' phases."""
        assert self._begin is not None
        while self._waiting and self._waiting[0][0] <= self._begin + time_s:
            at, _, line = self._waiting.popleft()
            self._enter(max(0.0, at - self._begin), line)
        while self._faults and self._faults[0][0] <= time_s:
            at_s, words = self._faults.pop(0)
            self._add_event(at_s, ("fault", words))
        phases = self._phases(time_s)
        predicted = predicted_s(self._status) if self._status else None
        counters = self._status.get("counters", {})
        frame = Frame(
            trial=self._trial,
            job=self._config.job.id,
            time_s=round(time_s, 3),
            iteration=self._iteration,
            k=self._k or self._status.get("k", 0),
            objective=str(self._status.get("objective", "")),
            late_gradient=str(self._status.get("late_gradient", "")),
            accuracy=self._accuracy,
            loss=self._loss,
            iteration_ms=round(sum(self._times_ms) / len(self._times_ms), 2) if self._times_ms else None,
            predicted_ms=None if predicted is None else round(1e3 * predicted, 2),
            waiting=str(self._status.get("waiting", "")),
            packets={verdict: int(count) for verdict, count in counters.items() if int(count)},
            points=tuple(self._points[:: -(-len(self._points) // POINTS) or 1]),
            workers=tuple(track.frame(phases.get(track.rank, "")) for track in self._tracks),
            uplinks=self._uplinks,
            slots=None if self._slots is None else self._slots.slots,
            events=tuple(self._events),
        )
        self._points, self._events = [], []
        return frame

    def _phases(self, time_s: float) -> dict[int, str]:
        """Return each worker's phase at a time, from the lines up to LAG_S later."""
        begin = self._begin or 0.0
        known: dict[int, str] = {}
        near = itertools.takewhile(lambda entry: entry[0] <= begin + time_s + LAG_S, self._waiting)
        for rank, iteration in (line for _, _, line in near if isinstance(line, tuple)):
            known[rank] = known.get(rank, "") or phase_at(span_of(iteration, begin), time_s)
        return known

    def _enter(self, time_s: float, line: Any) -> None:
        match line:
            case (rank, Iteration() as iteration):
                self._finished(time_s, rank, iteration)
            case Sample():
                self._sampled(line)
            case LoggedEvent():
                self._add_event(time_s, ("event", line.words))
                if not line.missed and line.name.startswith("worker-") and line.action in ("kill", "start"):
                    state = "killed" if line.action == "kill" else "starting"
                    self._tracks[int(line.name.removeprefix("worker-"))].process(state)
            case ObjectiveNote():
                self._add_event(time_s, ("controller", line.words))
            case _:
                self._status = line
                for status in line["worker"]:
                    self._tracks[status["rank"]].update(status)
                for news in self._news.of(line):
                    self._add_event(time_s, news)

    def _finished(self, time_s: float, rank: int, line: Iteration) -> None:
        assert self._begin is not None
        self._tracks[rank].finished(line, self._begin)
        if line.iteration <= self._iteration:
            return
        self._iteration, self._k = line.iteration, line.k
        for iteration, words in self._stragglers:
            if iteration == line.iteration:
                self._add_event(time_s, ("straggler", words))
        self._accuracy = self._accuracy if line.accuracy is None else round(line.accuracy, 5)
        self._loss = self._loss if line.loss is None else round(line.loss, 4)
        self._times_ms.append(1e3 * (time_s - self._finished_at))
        self._finished_at = time_s
        time_ms, accuracy = round(self._times_ms[-1], 3), None if line.accuracy is None else self._accuracy
        self._points.append(
            IterationPoint(line.iteration, round(time_s, 4), time_ms, line.k, line.count, accuracy, self._loss)
        )

    def _sampled(self, sample: Sample) -> None:
        """Take a sample, and compute rates since the previous sample."""
        before, self._sample = self._sample, sample
        self._slots = sample if sample.slots is not None else self._slots
        for track, host in zip(self._tracks, self._hosts, strict=False):
            track.carried((*sample.links[host], *_rates(host, before, sample)))
        self._uplinks = tuple(_rates(leaf, before, sample) for leaf in self._leaves)

    def _add_event(self, time_s: float, news: News) -> None:
        kind, words = news
        self._events.append(EventFrame(time_s=round(time_s, 3), iteration=self._iteration, kind=kind, words=words))


def _rates(end: str, before: Sample | None, now: Sample) -> tuple[float, float]:
    """Return the Mbit/s up and down the link of a host or a leaf between two samples; 0 without an earlier sample."""
    if before is None:
        return 0.0, 0.0
    unit = 8e-6 / (now.time - before.time)
    up, down = (unit * (number - earlier) for number, earlier in zip(now.links[end], before.links[end], strict=True))
    return up, down


def next_frame(time_s: float) -> float:
    """Return the time of the frame after the frame at `time_s`.

    >>> next_frame(0.0), next_frame(120.0), next_frame(240.0)
    (0.1, 120.2, 240.4)
    """
    step_s = FRAME_S
    while time_s >= FINE_FRAMES * step_s - 1e-9:
        step_s *= 2
    return round(time_s + step_s, 3)
