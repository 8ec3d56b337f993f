"""A worker's part of the frames, from the lines of its metrics in the order of their times."""

from collections import deque
from typing import Any

from kofn.web.frames import Span, WorkerFrame
from kofn_common.results.worker_metrics import Iteration
from kofn_common.results.worker_state import worker_state

RECENT = 50
"""The number of gradients in `late_share`."""

SPANS = 64

PHASES = ("computing", "blocked", "waiting", "updating")

Link = tuple[int, int, float, float]
"""Bytes to the switch and from the switch, and the rates in Mbit/s."""


class WorkerTrack:
    """Takes a worker's lines and statuses, and gives the worker's part of frames."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self._iteration = self._late = 0
        self._recent = deque[bool](maxlen=RECENT)
        self._spans = deque[Span](maxlen=SPANS)
        self._injected_ms: float | None = None
        self._process = ""
        self._status: dict[str, Any] = {}
        self._link: Link = (0, 0, 0.0, 0.0)

    def finished(self, line: Iteration, begin: float) -> None:
        """Take a finished iteration; the frames' seconds count from `begin`, in Unix time."""
        self._iteration, self._injected_ms, self._process = line.iteration, 1e3 * line.injected_mean_s, ""
        self._late += line.late
        if line.computed or line.late:  # else the worker had no gradient of this iteration
            self._recent.append(line.late)
        if (span := span_of(line, begin)) is not None:
            self._spans.append(span)

    def update(self, status: dict[str, Any]) -> None:
        """Take the controller's status of the worker."""
        self._status = status

    def process(self, state: str) -> None:
        """Take the state of the worker's process after a kill or a start."""
        self._process = state

    def carried(self, link: Link) -> None:
        self._link = link

    def frame(self, phase: str) -> WorkerFrame:
        """Return the worker's part of a frame, with all spans since the previous frame."""
        spans, status = tuple(self._spans), self._status
        self._spans.clear()
        known = int(status.get("samples", 0)) > 0
        sent, received, up, down = self._link
        return WorkerFrame(
            rank=self.rank,
            iteration=self._iteration,
            state=worker_state(self._process or status.get("state", ""), self._iteration),
            phase="" if self._process else phase,
            late=self._late,
            late_share=round(sum(self._recent) / len(self._recent), 3) if self._recent else 0.0,
            share=round(status.get("share", 0.0), 4),
            link=status.get("link", ""),
            lambda_ms=round(1e3 * status["lambda_s"], 2) if known else None,
            low_ms=round(1e3 * status["lambda_low_s"], 2) if known else None,
            high_ms=round(1e3 * status["lambda_high_s"], 2) if known and status["lambda_high_s"] else None,
            injected_ms=None if self._injected_ms is None else round(self._injected_ms, 2),
            sent_bytes=sent,
            received_bytes=received,
            sent_mbps=round(up, 3),
            received_mbps=round(down, 3),
            spans=spans,
        )


def span_of(line: Iteration, begin: float) -> Span | None:
    """Return the span of an iteration; None if the worker did not compute the iteration.

    A worker that gave up its gradient was blocked for less than the drawn time `line.blocking_s`. `line.time` is the
    time at which the line's record was begun, microseconds after the end of the step.
    """
    if line.started is None or line.first_block_s is None:
        return None
    unblocked = line.started + line.first_block_s
    computed = max(line.started, unblocked - (line.blocking_s or 0.0))
    exchanged = max(unblocked, line.time - (line.step_s or 0.0))
    ends = (computed, min(unblocked, line.time), min(exchanged, line.time), line.time)
    first, second, third, last = (round(end - begin, 4) for end in ends)
    return Span(line.iteration, round(line.started - begin, 4), first, second, third, last, line.late)


def phase_at(span: Span | None, time_s: float) -> str:
    """Return the phase at a time; empty outside of the span."""
    if span is None or not span.begin_s <= time_s < span.end_s:
        return ""
    ends = (span.computed_s, span.unblocked_s, span.exchanged_s, span.end_s)
    return next(phase for phase, end in zip(PHASES, ends, strict=True) if time_s < end)
