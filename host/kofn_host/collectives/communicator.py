"""The interface of all collectives: asynchronous calls of a fixed group of workers.

This module has no network.  A kind of communicator decides when a call may be carried out (`_submit`) and how
(`_carry`); calls are carried out one at a time, in a separate thread.
"""

import logging
import threading
from abc import ABC, abstractmethod
from collections import Counter
from dataclasses import dataclass, field, replace
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Self
from weakref import WeakSet

import numpy as np

from kofn_host.arrays import Floats
from kofn_host.collectives.call import (
    Array,
    CollectiveCall,
    Given,
    Key,
    Op,
    check_elements,
    check_op,
    check_rank,
    checked_array,
    checked_out,
)
from kofn_host.collectives.streamed_gradient import PieceByPiece, StreamedGradient
from kofn_host.collectives.work import Work, WorkOutcome
from kofn_host.errors import CollectiveError, HostError
from kofn_host.stopwatch import Stopwatch

if TYPE_CHECKING:
    from kofn_host.agent.gradient_stream import GradientStream

_LOG = logging.getLogger(__name__)

NAME_MOST = 200
"""The most characters of a call's name."""

PIECE_S = 60.0
"""The longest wait for the next piece of a gradient."""

LEAVE_S = 5.0
"""The longest wait for the end of the thread that carries out calls."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A call of this worker, its arrays (empty for a barrier), and its Work.

    `stream`: the source of the given array's pieces; None: the array is complete.  `watch` runs from the call on, and
    counts the time before the call is carried out as `wait`.  `note`: further numbers that the workers have agreed on
    (messages.Agreed).
    """

    key: Key
    call: CollectiveCall
    given: Array
    out: Array
    work: Work[Any]
    stream: "GradientStream | None" = None
    watch: Stopwatch = field(default_factory=Stopwatch)
    note: bytes = b""

    def __str__(self) -> str:
        return f"{self.call} ({self.key})"


class Communicator(ABC):
    """One worker's place among `workers` that call collectives together; `rank`: this worker's rank, from 0.

        with Ring(0, ["10.0.0.1", "10.0.0.2"]) as communicator:
            work = communicator.all_reduce(gradient, op="mean")
            ...
            step(work.result())

    A call returns at once.  Its arrays belong to the communicator until the Work is done: the given array must not
    change, and `out` must not be read.  Any number of calls may be under way.

    Workers' calls are matched by name and order: the first "a" of each worker, the second "a", and so on.  Calls of
    different names may be made in any order; unnamed calls share one name.  Matched calls must have the same kind, op,
    root, dtype and shape.

    Arrays are float32, float16, bfloat16 (from ml_dtypes), int32 or int64, of any shape, also empty.  `out` gets the
    result, and may be the given array; without `out` the result is a new array.  Floating sums are rounded to the dtype
    at each step, and have the same bytes at every worker; int32 and int64 wrap around.

    A call raises CollectiveError at once, without effect, if an argument is invalid.  A Work raises CollectiveError if
    a worker is gone or too late, or if calls differ; the message names the worker or the calls.  Every wait has a
    limit.  After an error of a Work all workers' calls fail, and only close() is useful.
    """

    def __init__(self, rank: int, workers: int) -> None:
        if workers < 1:
            raise CollectiveError(f"workers must be 1 or more, got {workers}")
        check_rank("rank", rank, workers)
        self.rank, self.workers = rank, workers
        self._lock = threading.Lock()
        self._made, self._begun = Counter[str](), Counter[str]()
        self._open: dict[Key, Task] = {}
        self._streams = WeakSet[PieceByPiece]()
        self._failed = ""
        """The reason why all further calls fail."""
        self._closed = False
        self._ready = SimpleQueue[Task | str | None]()
        """The next items: a call, a reason why all later calls fail, or None for the end."""
        self._carrier = threading.Thread(target=self._carry_all, name=f"collectives-{rank}", daemon=True)
        self._carrier.start()

    # -- calls

    def all_reduce(
        self, array: Given, *, op: Op = "sum", out: Array | None = None, name: str = "", elastic: bool = False
    ) -> Work[Array]:
        """Sum or average all workers' arrays, in their shape.

        `elastic`: sum the arrays of the fastest k workers; late arrays enter the next call.  Only a switch or a server
        can do this.
        """
        given = checked_array(array)
        check_op(op, given.dtype.name)
        call = CollectiveCall(kind="all_reduce", dtype=given.dtype.name, shape=given.shape, op=op, elastic=elastic)
        return self._begin(call, given, checked_out(out, given.shape, given.dtype), name)

    def begin(self, elements: int, *, name: str = "", elastic: bool = False) -> StreamedGradient:
        """Begin the mean of all workers' gradients of `elements` float32, put in pieces while they are computed.

        `name`, `elastic`: as in all_reduce().
        """
        check_elements(elements)
        _check_name(name)
        if elastic:
            call = CollectiveCall(kind="all_reduce", dtype="float32", shape=(elements,), op="mean", elastic=True)
            self._check(call, np.empty(0, np.float32))
        with self._lock:
            self._check_open()
            self._begun[name] += 1
            called = " ".join(filter(None, ("gradient", name, str(self._begun[name]))))

            def reduce(piece: Floats, which: str) -> Work[Array]:
                return self.all_reduce(piece, op="mean", out=piece, name=f"{called}: {which}", elastic=elastic)

            gradient = PieceByPiece(elements, reduce, PIECE_S)
            self._streams.add(gradient)
        return gradient

    def reduce_scatter(
        self, array: Given, *, op: Op = "sum", out: Array | None = None, name: str = "", elastic: bool = False
    ) -> Work[Array]:
        """Return row `rank` of the sum or mean of all workers' arrays, whose shape is (workers, ...).

        `elastic`: as in all_reduce(); the call is done when all workers have their rows.
        """
        given = checked_array(array)
        check_op(op, given.dtype.name)
        if given.shape[:1] != (self.workers,):
            raise CollectiveError(
                f"array must have shape ({self.workers}, ...), a row for each worker, got {given.shape}"
            )
        call = CollectiveCall(kind="reduce_scatter", dtype=given.dtype.name, shape=given.shape, op=op, elastic=elastic)
        return self._begin(call, given, checked_out(out, given.shape[1:], given.dtype), name)

    def all_gather(self, array: Given, *, out: Array | None = None, name: str = "") -> Work[Array]:
        """Return all workers' arrays, shape (workers, ...): row r is the array of worker r."""
        given = checked_array(array)
        call = CollectiveCall(kind="all_gather", dtype=given.dtype.name, shape=given.shape)
        return self._begin(call, given, checked_out(out, (self.workers, *given.shape), given.dtype), name)

    def broadcast(self, array: Given, *, root: int = 0, out: Array | None = None, name: str = "") -> Work[Array]:
        """Return the array of worker `root`; the others' arrays give shape and dtype."""
        given = checked_array(array)
        check_rank("root", root, self.workers)
        call = CollectiveCall(kind="broadcast", dtype=given.dtype.name, shape=given.shape, root=root)
        return self._begin(call, given, checked_out(out, given.shape, given.dtype), name)

    def barrier(self, *, name: str = "") -> Work[None]:
        """Return a Work that is done when all workers have called barrier(); earlier calls may still be under way."""
        return self._begin(CollectiveCall(kind="barrier"), np.empty(0), np.empty(0), name)

    def close(self) -> None:
        """Release all resources; calls that still need this worker fail.  Further calls of close() do nothing."""
        with self._lock:
            closed, self._closed = self._closed, True
            unfinished = next(map(str, self._open.values()), "")
        if closed:
            return
        reason = f"worker {self.rank} has closed its communicator"
        self._fail(reason)
        self._leave(f"{reason} in {unfinished}" if unfinished else "")
        self._ready.put(None)
        if threading.current_thread() is not self._carrier:
            self._carrier.join(LEAVE_S)
        self._release()

    @abstractmethod
    def fail(self, reason: str, *, late: Work[Any] | None = None) -> None:
        """End all calls: at this worker now, at the others as soon as they hear of the end.  Any thread may call this.

        `late`: the call that lasts too long.  Then worker 0 ends all calls, and its reason names the workers that have
        not made this call.
        """

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    # -- for kinds of communicators

    @abstractmethod
    def _check(self, call: CollectiveCall, given: Array) -> None:
        """Raise CollectiveError if this kind does not support the call."""

    @abstractmethod
    def _submit(self, task: Task) -> None:
        """Submit a call: `_agreed` must be called once all workers have made it."""

    @abstractmethod
    def _carry(self, task: Task) -> WorkOutcome[Array]:
        """Carry out a call; `_break` handles exceptions."""

    @abstractmethod
    def _leave(self, trouble: str) -> None:
        """Notify the other workers, and make a running `_carry` fail soon; `trouble`: why their calls fail, or ""."""

    @abstractmethod
    def _release(self) -> None:
        """Release all resources."""

    def _break(self, task: Task, error: Exception) -> None:
        """Handle a failed call."""
        self._fail(blame(self.rank, error))

    def _agreed(self, key: Key, note: bytes = b"") -> None:
        """Queue a call that all workers have made."""
        task = self._open.get(key)
        if task is None:
            return
        if task.call.kind == "barrier":
            self._finish(task, WorkOutcome(value=None, count=self.workers, times=task.watch.times()))
        else:
            self._ready.put(replace(task, note=note))

    def _fail(self, reason: str) -> None:
        """End all calls; only the first reason counts."""
        with self._lock:
            self._failed = self._failed or reason
            tasks, streams = list(self._open.values()), list(self._streams)
            self._open.clear()
        for task in tasks:
            task.work.set_exception(CollectiveError(self._failed))
        for stream in streams:
            stream.fail(self._failed)

    def _fail_later(self, reason: str) -> None:
        """End all calls except the calls that are queued already."""
        self._ready.put(reason)

    # -- within

    def _begin(
        self, call: CollectiveCall, given: Array, out: Array, name: str, stream: "GradientStream | None" = None
    ) -> Work[Any]:
        _check_name(name)
        self._check(call, given)
        work = Work[Any](str(call))
        with self._lock:
            self._check_open()
            self._made[name] += 1
            task = Task(key=Key(name, self._made[name]), call=call, given=given, out=out, work=work, stream=stream)
            self._open[task.key] = task
        self._submit(task)  # may block on other workers, whose messages may need the lock
        return work

    def _check_open(self) -> None:
        if self._closed:
            raise CollectiveError(f"the communicator of worker {self.rank} is closed")
        if self._failed:
            raise CollectiveError(f"an earlier call has failed: {self._failed}")

    def _finish(self, task: Task, outcome: WorkOutcome[Any]) -> None:
        with self._lock:
            finished = self._open.pop(task.key, None)
        if finished is not None:
            finished.work.finish(outcome)

    def _carry_all(self) -> None:
        """Carry out calls one after another, in the agreed order; floating overflow is silent."""
        np.seterr(all="ignore")  # only in this thread
        while self._carry_next():
            pass

    def _carry_next(self) -> bool:
        """Carry out the next call; return False at the end.  The call's memory is released when this returns."""
        task = self._ready.get()
        if isinstance(task, str):
            self._fail(task)
        elif task is not None and not self._failed:
            try:
                outcome = self._carry(task)
            except Exception as error:  # no error may leave calls that never end
                self._break(task, error)
            else:
                self._finish(task, outcome)
        return task is not None


def _check_name(name: str) -> None:
    if not isinstance(name, str) or len(name) > NAME_MOST:
        raise CollectiveError(f"name must be a string of up to {NAME_MOST} characters, got {name!r}")


def blame(rank: int, error: Exception) -> str:
    """Return an error's message with the responsible worker: this worker, or the worker that a CollectiveError names.

    An unexpected error, as a user's protocol may raise it, is logged with its traceback.
    """
    if isinstance(error, CollectiveError):
        return str(error)
    words = str(error) if isinstance(error, HostError) else f"{type(error).__name__}: {error}"
    if not isinstance(error, HostError | OSError):
        _LOG.error("a collective call failed", exc_info=error)
        words += " (traceback in its log)"
    return f"worker {rank}: {words}"
