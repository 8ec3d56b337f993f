"""A closed terminal ends the run, even if no signal reports it.

A closed terminal sends SIGHUP to the leader of its session alone, and a leader such as make does not pass the signal on
but waits for its children. So the terminal itself is watched.
"""

import contextlib
import os
import select
import signal
import threading
from collections.abc import Iterator

from kofn_common.forked import HARMLESS

PERIOD_S = 0.5
GONE = select.POLLHUP | select.POLLERR | select.POLLNVAL


@contextlib.contextmanager
def watched() -> Iterator[None]:
    """Send this process SIGHUP, within the block, when a terminal that it reads from or writes to is closed."""
    terminals = [descriptor for descriptor in (0, 1, 2) if os.isatty(descriptor)]
    if not terminals or hangups_ignored():
        yield
        return
    over = threading.Event()
    copies = [os.dup(descriptor) for descriptor in terminals]  # leave() replaces descriptors 1 and 2
    watcher = threading.Thread(target=_watch, args=(copies, over), name="terminal", daemon=True)
    HARMLESS.add(watcher)  # it polls and waits
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()
        for descriptor in copies:
            os.close(descriptor)


def hangups_ignored() -> bool:
    """Return whether this process was started to survive its terminal (nohup)."""
    return signal.getsignal(signal.SIGHUP) is signal.SIG_IGN


def leave() -> None:
    """Redirect output to nowhere: the terminal is gone, and writing to it would fail."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for descriptor in (1, 2):
        os.dup2(nowhere, descriptor)
    os.close(nowhere)


def _watch(terminals: list[int], over: threading.Event) -> None:
    poll = select.poll()
    for descriptor in terminals:
        poll.register(descriptor, 0)  # typed input does not matter
    while not over.wait(PERIOD_S):
        if any(event & GONE for _, event in poll.poll(0)):
            os.kill(os.getpid(), signal.SIGHUP)
            return
