"""The end of a command that makes a network: by itself, by an error in one line, by a signal, by a closed terminal."""

import contextlib
import errno
import sys
from collections.abc import Iterator

from kofn.report.table import make_console
from kofn.run import terminal
from kofn.run.display import say
from kofn.run.errors import InterruptedRun
from kofn.run.signals import interruptible
from kofn_common.config.errors import ConfigError, KofnError


@contextlib.contextmanager
def ending(command: str) -> Iterator[None]:
    """Run the body, which signals may end; exit code 2 for a wrong input, 130 for a signal, 1 for other errors."""
    try:
        with interruptible(), terminal.watched():
            yield
    except ConfigError as error:
        _end(command, error, 2)
    except InterruptedRun as error:
        _end(command, error, 130)
    except KofnError as error:
        _end(command, error, 1)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            _end(
                command, f"{error.strerror}: free some of the disk, and kofn report DIR shows what there is of a run", 1
            )
        if error.errno != errno.EIO:
            raise
        terminal.leave()  # the terminal was closed shortly before its watcher saw that
        sys.exit(130)


def _end(command: str, error: object, code: int) -> None:
    """Print the error in one line, and exit."""
    say(make_console(stderr=True), f"kofn {command}: {error}")
    sys.exit(code)
