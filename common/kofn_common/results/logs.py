"""The end of a log file."""

from pathlib import Path

TAIL_LINES = 15
LINE_LENGTH = 500
"""Characters of a line that are shown."""

_TORCHRUN = ("torch/distributed/elastic/multiprocessing/api.py", "failed (exitcode")
"""Parts of the line after which torchrun reports on itself instead of the failed script."""


def tail(path: Path, lines: int = TAIL_LINES) -> str:
    """Return the last lines, indented, or the last traceback; say so if there are none.

    If torchrun ran a script, only the script's lines count.
    """
    try:
        text = path.read_text(errors="replace").splitlines()
    except FileNotFoundError:
        return "  (no log was written)"
    ends = [number for number, line in enumerate(text) if all(part in line for part in _TORCHRUN)]
    told = (text[: ends[0]] if ends and ends[0] else text)[-lines:]
    begins = [number for number, line in enumerate(told) if "Traceback (most recent call last):" in line]
    return "\n".join(f"  {line[:LINE_LENGTH]}" for line in told[max(begins, default=0) :]) or "  (the log is empty)"
