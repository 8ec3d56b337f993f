"""`--set SECTION.KEY=VALUE`: single keys of a configuration, given on the command line."""

import tomllib
from collections.abc import Sequence
from typing import Any

from kofn.config.errors import ConfigError


def override(document: dict[str, Any], settings: Sequence[str]) -> None:
    """Put the values into a configuration's tables; ConfigError for what is no SECTION.KEY=VALUE."""
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
