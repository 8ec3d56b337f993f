"""The end of a log file."""

from pathlib import Path

TAIL_LINES = 15


def tail(path: Path, lines: int = TAIL_LINES) -> str:
    """The last lines, indented; says so if there are none."""
    try:
        text = path.read_text(errors="replace").splitlines()
    except FileNotFoundError:
        return "  (no log was written)"
    return "\n".join(f"  {line}" for line in text[-lines:]) or "  (the log is empty)"
