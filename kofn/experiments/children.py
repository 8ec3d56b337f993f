"""Processes that compute for a command, and end with the command."""

import multiprocessing
import os
import signal
import threading
from multiprocessing.pool import Pool


def children(processes: int) -> Pool:
    """Return a pool of processes as a context. The processes end with the context, or when this process is killed."""
    return multiprocessing.get_context("spawn").Pool(processes, _follow_parent)


def _follow_parent() -> None:
    """Leave Ctrl-C to the parent, which ends its children."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def wait() -> None:
        if (parent := multiprocessing.parent_process()) is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=wait, daemon=True).start()
