"""Overrides for keys of a configuration: `--set SECTION.KEY=VALUE` of a command line, tables of a script."""

import os
import tomllib
from collections.abc import Mapping, Sequence
from typing import Any

from kofn_common.config.errors import ConfigError

Settings = Sequence[str] | Mapping[str, Any]
"""A list of SECTION.KEY=VALUE, or keys by section; a list of tables is replaced as a whole."""


PATHS = "job.modules", "model.replay", "model.trace", "network.topology", "torch.script"
"""Keys whose value is a path. In a file it is relative to the file's folder, in SECTION.KEY=VALUE to the working
folder."""


def override(document: dict[str, Any], settings: Settings) -> None:
    """Put the values into a configuration's tables. Raise ConfigError for text that is no SECTION.KEY=VALUE."""
    if isinstance(settings, Mapping):
        for section, value in settings.items():
            table = document.get(section, {})
            both = isinstance(table, dict) and isinstance(value, dict)
            document[section] = {**table, **value} if both else value
        return
    for setting in settings:
        name, equals, value = setting.partition("=")
        section, dot, key = name.strip().partition(".")
        if not (equals and dot and section and key) or "." in key:
            raise ConfigError(f"--set must be SECTION.KEY=VALUE, model.learning_rate=0.05 for example, got {setting}")
        table = document.setdefault(section, {})
        if not isinstance(table, dict):
            raise ConfigError(f"--set must name a key of a [section], got {setting}: [[{section}]] is a list")
        given = _value(value.strip())
        table[key] = os.path.abspath(given) if f"{section}.{key}" in PATHS and isinstance(given, str) else given


def _value(text: str) -> Any:
    """Return the value as in TOML; other text is a string without quotes."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
