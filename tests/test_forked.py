"""Calls in child processes: results in order, calls at the same time, and no child is left."""

import multiprocessing
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable

import pytest

from kofn_common.config.errors import ConfigError, KofnError
from kofn_common.forked import HARMLESS, alone, forked

ONE = len(os.sched_getaffinity(0)) == 1


@pytest.fixture
def several(monkeypatch: pytest.MonkeyPatch) -> None:
    """Allow children; threads left by other tests hold no lock that these calls need."""
    if ONE:
        pytest.skip("one processor: calls are carried out in turn")
    monkeypatch.setattr("kofn_common.forked.alone", lambda: True)


def ended(process: int, *, within_s: float) -> bool:
    """Whether a process, given by its file descriptor, has ended."""
    poll = select.poll()
    poll.register(process, select.POLLIN)
    return bool(poll.poll(1000 * within_s))


def waiting(told: Callable[[int], object]) -> Callable[[], None]:
    """Return a call that tells its process's id, and ends only when it is killed."""

    def wait() -> None:
        told(os.getpid())
        while True:
            signal.pause()

    return wait


def fail() -> None:
    raise ConfigError("what is wrong")


@pytest.mark.slow
def test_results_come_in_order() -> None:
    with forked([lambda number=number: number**2 for number in range(7)]) as results:
        assert [*results] == [number**2 for number in range(7)]


@pytest.mark.usefixtures("several")
def test_calls_run_at_the_same_time_in_other_processes() -> None:
    both = multiprocessing.get_context("fork").Barrier(2)

    def meet() -> int:
        both.wait(20)
        return os.getpid()

    with forked([meet, meet]) as results:
        assert len({os.getpid(), *results}) == 3


def test_error_is_raised_unchanged() -> None:
    with pytest.raises(ConfigError, match="what is wrong"), forked([fail]) as results:
        next(results)


class LockedError(Exception):
    """An error that cannot be pickled."""

    def __init__(self, words: str) -> None:
        super().__init__(words)
        self.lock = threading.Lock()


def break_off() -> None:
    raise LockedError("this and that")


@pytest.mark.usefixtures("several")
@pytest.mark.parametrize(
    ("call", "kind", "words"), [(fail, ConfigError, "what"), (break_off, RuntimeError, "this and")]
)
def test_error_brings_its_traceback(call: Callable[[], None], kind: type[Exception], words: str) -> None:
    with pytest.raises(kind, match=words) as caught, forked([call]) as results:
        next(results)
    (note,) = caught.value.__notes__
    assert f"in {call.__name__}" in note


@pytest.mark.usefixtures("several")
def test_error_ends_the_other_children() -> None:
    ours, theirs = multiprocessing.Pipe()
    with pytest.raises(ConfigError), forked([fail, waiting(theirs.send)]) as results:
        child = os.pidfd_open(ours.recv())
        assert not ended(child, within_s=0.0)
        next(results)
    assert ended(child, within_s=0.0)


@pytest.mark.usefixtures("several")
def test_killed_child_is_an_error() -> None:
    with (
        pytest.raises(KofnError, match=r"killed \(exit code -9\)"),
        forked([lambda: os.kill(os.getpid(), signal.SIGKILL)]) as results,
    ):
        next(results)


@pytest.mark.usefixtures("several")
def test_child_is_not_interrupted_and_ends_with_its_parent() -> None:
    script = """
import os, signal
from kofn_common.forked import forked
def wait():
    os.kill(os.getpid(), signal.SIGINT)
    print(os.getpid(), flush=True)
    while True: signal.pause()
with forked([wait]) as results: next(results)
"""
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = os.pidfd_open(int(parent.stdout.readline()))
        assert not ended(child, within_s=0.0)
        parent.kill()
        assert ended(child, within_s=20.0)


def test_calls_in_a_thread_run_in_turn() -> None:
    found: list[int] = []

    def work() -> None:
        with forked([os.getpid, os.getpid]) as results:
            found.extend(results)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [os.getpid()] * 2


def test_process_with_another_thread_is_not_alone() -> None:
    before, ended = alone(), threading.Event()
    thread = threading.Thread(target=ended.wait)
    thread.start()
    assert not alone()
    ended.set()
    thread.join()
    assert alone() == before


def test_thread_forbids_children_unless_it_is_harmless() -> None:
    over = threading.Event()
    thread = threading.Thread(target=over.wait)
    others = {other for other in threading.enumerate() if other is not threading.current_thread()} - {*HARMLESS}
    thread.start()
    try:
        assert not alone()
        HARMLESS.update({thread, *others})
        assert alone()
    finally:
        HARMLESS.difference_update(others)
        over.set()
        thread.join()
