"""The options that made a folder's results. With --report-only, `kofn compare` uses these options unless its command
line gives other values."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kofn_common.json_text import json_text

FILE = "options.json"
"""A file in the folder of the results."""


def write_options(folder: Path, options: Mapping[str, Any]) -> None:
    (folder / FILE).write_text(f"{json_text(options)}\n")


def read_options(folder: Path) -> dict[str, Any] | None:
    """Return the options that write_options() stored, lists as tuples; None without a readable file."""
    try:
        found: dict[str, Any] = json.loads((folder / FILE).read_text())
    except (OSError, ValueError):
        return None
    return {name: tuple(value) if isinstance(value, list) else value for name, value in found.items()}
