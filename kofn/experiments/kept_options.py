"""The options that made a folder's results. With --report-only, a command uses these options unless its command line
gives other values."""

import functools
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from kofn_common.json_text import json_text

FILE = "options.json"
"""A file in the folder of the results."""

OF_ONE_CALL = ("out", "report_only", "as_json", "processes", "cluster")
"""Parameters that do not affect the results."""


def write_options(folder: Path, options: Mapping[str, Any]) -> None:
    (folder / FILE).write_text(f"{json_text(options)}\n")


def read_options(folder: Path) -> dict[str, Any] | None:
    """Return the options that write_options() stored, lists as tuples; None without a readable file."""
    try:
        found: dict[str, Any] = json.loads((folder / FILE).read_text())
    except (OSError, ValueError):
        return None
    return {name: tuple(value) if isinstance(value, list) else value for name, value in found.items()}


def given_options() -> dict[str, Any]:
    """Return the parameters on the running command's line."""
    context = click.get_current_context()
    asked = {name for name in context.params if context.get_parameter_source(name) is ParameterSource.COMMANDLINE}
    return {name: context.params[name] for name in context.params if name in asked and name not in OF_ONE_CALL}


def with_kept_options(command: Callable[..., None]) -> Callable[..., None]:
    """Wrap a click command with --out and --report-only, so that --report-only uses the folder's options."""

    @functools.wraps(command)
    def wrapped(**given: Any) -> None:
        if given["report_only"] and given["out"] is not None:
            given |= (read_options(given["out"]) or {}) | given_options()
        command(**given)

    return wrapped
