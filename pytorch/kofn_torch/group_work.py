"""Running calls of a process group. The calls complete in the order in which they were made.

A function that was given to then() of a call's future may itself make calls and wait for them. Another thread then
completes the calls that follow. All ranks make such calls in the same order, because each rank runs these functions in
the order of the calls.
"""

import atexit
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, NoReturn
from weakref import WeakSet

import torch
import torch.distributed as dist
from torch import Tensor

from kofn_torch.errors import TorchError

EXIT_S = 5.0
"""When Python ends, calls that no code has waited for have this time to complete."""

NO_TIMEOUT = timedelta(0)
"""The value that PyTorch passes for a wait without a time limit."""

MOMENT_S = 0.001
"""The shortest timeout. PyTorch counts whole milliseconds, and takes a shorter timeout for NO_TIMEOUT."""

_here = threading.local()
"""In a thread that completes calls, the attribute `completions` is the Completions for which the thread works."""


class Completions:
    """A queue of functions that each complete a call. A thread runs the functions in order, and ends when the queue is
    empty."""

    def __init__(self) -> None:
        self._left = deque[Callable[[], object]]()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        _all.add(self)

    def add(self, complete: Callable[[], object]) -> None:
        with self._lock:
            self._left.append(complete)
            if self._thread is None:
                self._start()

    def relieve(self) -> None:
        """If the calling thread is the thread that completes calls, start another thread in its place, because the
        calling thread is about to wait."""
        with self._lock:
            if self._thread is threading.current_thread():
                self._start()

    def join(self, deadline_s: float) -> None:
        """Wait until no calls are left, or until the deadline (time.monotonic)."""
        while (thread := self._thread) is not None and (left_s := deadline_s - time.monotonic()) > 0:
            thread.join(left_s)

    def _start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="kofn-completions", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        _here.completions = self
        while complete := self._next():
            complete()
            del complete  # a future freed after join() has returned would abort the process

    def _next(self) -> Callable[[], object] | None:
        """Return the next function; None if another thread has replaced this thread, or no function is left."""
        with self._lock:
            if self._thread is not threading.current_thread():
                return None
            if self._left:
                return self._left.popleft()
            self._thread = None
            return None


_all = WeakSet[Completions]()


@atexit.register
def _end() -> None:
    """Wait for the threads: a thread that completes a call while Python ends would abort the process."""
    deadline_s = time.monotonic() + EXIT_S
    for completions in [*_all]:
        completions.join(deadline_s)


class _Failure:
    """The value of a future that has failed. PyTorch's C++, such as DDP's own reduction, reads a value's tensors by
    pickling the value, and so meets the error."""

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def __reduce__(self) -> Any:
        raise self.error


class SwitchFuture(torch.futures.Future[list[Tensor]]):  # type: ignore[misc]
    """A future that a callback of another future may wait for."""

    _failure: _Failure | None = None

    def wait(self, timeout_s: float | None = None) -> list[Tensor]:
        """Wait for the tensors, or raise the call's error; raise TimeoutError after `timeout_s`."""
        if not self.done():
            if (completions := getattr(_here, "completions", None)) is not None:
                completions.relieve()
            if timeout_s is not None:
                self._await_end(timeout_s)
        try:
            found: list[Tensor] = super().wait()
        except RuntimeError:
            if self._failure is not None:  # the future of an accelerator's tensors has read the value
                raise self._failure.error from None
            raise
        return found

    def _await_end(self, timeout_s: float) -> None:
        ended = threading.Event()
        self.add_done_callback(lambda _: ended.set())
        if not ended.wait(timeout_s):
            raise TimeoutError

    def set_exception(self, error: BaseException) -> None:
        def fail(value: object) -> NoReturn:
            raise error

        self._failure = _Failure(error)
        self._set_unwrap_func(fail)
        self.set_result(self._failure)


class SwitchWork(dist.Work):  # type: ignore[misc]
    """A running call. Its wait() raises the error of its future; the Work object that PyTorch makes from a future does
    not raise it."""

    def __init__(self, call: str, future: SwitchFuture) -> None:
        super().__init__()
        self._call, self._future = call, future

    def wait(self, timeout: timedelta = NO_TIMEOUT) -> bool:
        """Wait until the call is done. Raise TorchError after `timeout`; the call continues."""
        try:
            self._future.wait(None if timeout == NO_TIMEOUT else timeout.total_seconds())
        except TimeoutError as error:
            raise TorchError(f"{self._call} is not done after {timeout.total_seconds():.3g} s") from error
        return True

    def get_future(self) -> SwitchFuture:
        return self._future

    def is_completed(self) -> bool:
        return bool(self._future.done())

    def result(self) -> list[Tensor]:
        tensors: list[Tensor] = self._future.value()
        return tensors


class JoinedWork(dist.Work):  # type: ignore[misc]
    """Several calls that complete as one call. `copies` has pairs of a tensor and its packed copy: wait() copies the
    results from the packed copies into the tensors."""

    def __init__(
        self, works: Sequence[Any], tensors: list[Tensor], copies: Sequence[tuple[Tensor, Tensor]] = ()
    ) -> None:
        super().__init__()
        self._works, self._tensors, self._copies = works, tensors, copies
        self._copying = threading.Lock()

    def wait(self, timeout: timedelta = NO_TIMEOUT) -> bool:
        end_s = time.monotonic() + timeout.total_seconds()
        for work in self._works:
            left = timedelta(seconds=max(MOMENT_S, end_s - time.monotonic()))
            work.wait(timeout if timeout == NO_TIMEOUT else left)
        self.result()
        return True

    def get_future(self) -> torch.futures.Future[list[Tensor]]:
        every = torch.futures.collect_all([work.get_future() for work in self._works])
        future: torch.futures.Future[list[Tensor]] = every.then(self._ended)
        return future

    def is_completed(self) -> bool:
        return all(work.is_completed() for work in self._works)

    def result(self) -> list[Tensor]:
        with self._copying:
            for tensor, copy in self._copies:
                tensor.detach().copy_(copy)
            self._copies = ()
        return self._tensors

    def _source_rank(self) -> int:
        (work,) = self._works
        return int(work._source_rank())

    def _ended(self, done: torch.futures.Future[list[torch.futures.Future[Any]]]) -> list[Tensor]:
        for future in done.value():
            future.value()  # raises its error
        return self.result()
