"""Calls that run at the same time, each in a child of this process, with a copy of this process's state.

with forked([lambda: simulate(trial) for trial in trials]) as ended:
    for result in ended: ...
"""

import contextlib
import ctypes
import gc
import multiprocessing
import os
import pickle
import signal
import sys
import threading
import traceback
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from multiprocessing.connection import Connection
from typing import Generic, TypeVar

from kofn_common.config.errors import KofnError
from kofn_common.config.plugins import in_words

T = TypeVar("T")

_FORK = multiprocessing.get_context("fork")
_PR_SET_PDEATHSIG = 1

GRACE_S = 3.0
"""The time for a child to end."""

HARMLESS = weakref.WeakSet[threading.Thread]()
"""Threads that hold no lock that a child would wait for: with them this process may be forked."""


@contextlib.contextmanager
def forked(calls: Iterable[Callable[[], T]]) -> Iterator[Iterator[T]]:
    """Yield the results of the calls, in order; as many calls run at a time as there are processors. Results must be
    picklable.

    The first error is raised. At the end of the block, children that still run are ended; when this process dies, they
    are killed. If this process must not be forked (it has other threads, or is a pool's child), or has one processor,
    it carries out the calls itself, in turn.
    """
    if processors() == 1:
        yield (call() for call in calls)
        return
    children = _Children(calls)
    try:
        yield iter(children)
    finally:
        children.end()


def alone() -> bool:
    """Return whether this process has no other threads, whose locks a child might wait for endlessly."""
    return all(thread is threading.current_thread() or thread in HARMLESS for thread in threading.enumerate())


def processors() -> int:
    """Return the number of processors for calls at the same time; 1 if this process must not be forked."""
    forks = alone() and not multiprocessing.current_process().daemon
    return len(os.sched_getaffinity(0)) if forks else 1


class _Children(Generic[T]):
    """The calls in progress: at first one for each processor; the next call starts when the oldest result has
    arrived."""

    def __init__(self, calls: Iterable[Callable[[], T]]) -> None:
        self._calls, self._running = iter(calls), deque[_Child[T]]()
        for _ in range(processors()):
            self._start()

    def __iter__(self) -> Iterator[T]:
        while self._running:
            result = self._running[0].result()
            self._running.popleft()
            self._start()
            yield result

    def _start(self) -> None:
        if (call := next(self._calls, None)) is not None:
            self._running.append(_Child(call))

    def end(self) -> None:
        for child in self._running:
            child.end()


class _Child(Generic[T]):
    """The process of one call."""

    def __init__(self, call: Callable[[], T]) -> None:
        self._answer, there = _FORK.Pipe(duplex=False)
        self._process = _FORK.Process(target=_carry_out, args=(call, there, os.getpid()))
        self._process.start()
        there.close()

    def result(self) -> T:
        """Return the call's result or raise its error; KofnError if the process was killed."""
        try:
            result, error = self._answer.recv()
        except EOFError:
            self._process.join()
            raise KofnError(
                f"a process that this process had started was killed (exit code {self._process.exitcode})"
            ) from None
        self._process.join()
        if error is not None:
            raise error
        return result  # type: ignore[no-any-return]  # the call's own type

    def end(self) -> None:
        """End the child in order, with files closed; kill it if that takes too long."""
        self._process.terminate()
        self._process.join(GRACE_S)
        self._process.kill()
        self._process.join()


def _carry_out(call: Callable[[], object], there: Connection, parent: int) -> None:
    """Carry out the call in the child, which the parent alone ends."""
    _die_with(parent)
    gc.freeze()  # objects of the parent are no garbage, so the collector can skip them
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(1))
    result, failure = None, None
    try:
        result = call()
    except Exception as error:  # the parent raises it
        failure = _sendable(error)
    there.send((result, failure))


def _sendable(error: Exception) -> Exception:
    """Return the error with its traceback as a note, or a RuntimeError with the text if it cannot be pickled."""
    try:
        sent: Exception = pickle.loads(pickle.dumps(error))
    except Exception:  # classes of other packages may not unpickle
        sent = RuntimeError(in_words(error))
    sent.add_note("".join(traceback.format_exception(error)))
    return sent


def _die_with(parent: int) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)
