"""Other values for keys of a configuration: `--set SECTION.KEY=VALUE` of a command line, tables of a script."""

import tomllib
from collections.abc import Mapping, Sequence
from typing import Any

from kofn.config.errors import ConfigError

Settings = Sequence[str] | Mapping[str, Any]
"""SECTION.KEY=VALUE of each; or by section the keys to replace, in place of a list of tables another list."""


def override(document: dict[str, Any], settings: Settings) -> None:
    """Put the values into a configuration's tables; ConfigError for what is no SECTION.KEY=VALUE."""
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
            raise ConfigError(f"--set {setting}: SECTION.KEY=VALUE is needed, model.learning_rate=0.05 for example")
        table = document.setdefault(section, {})
        if not isinstance(table, dict):
            raise ConfigError(f"--set {setting}: [[{section}]] is a list; keys of a [section] can be set")
        table[key] = _value(value.strip())


def _value(text: str) -> Any:
    """As in TOML; anything else is a string without its quotes."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
