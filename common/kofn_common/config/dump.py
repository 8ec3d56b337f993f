"""A configuration as the equivalent TOML: every key, with defaults and the command line's choices."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from kofn_common.config.schema import Config


def to_toml(config: Config) -> str:
    """Return TOML from which Config.load makes an equal configuration; a key without a value is left out."""
    tables: list[tuple[str, Any]] = []
    for name in config.__struct_fields__:
        value = getattr(config, name)
        entries = [(f"[[{name}]]", entry) for entry in value] if isinstance(value, tuple) else [(f"[{name}]", value)]
        tables += entries
    return "\n".join("\n".join([heading, *_lines(table)]) + "\n" for heading, table in tables)


def _lines(table: msgspec.Struct) -> Iterator[str]:
    for name in table.__struct_fields__:
        value = getattr(table, name)
        if value is not None:
            yield f"{name} = {_text(value)}"


def _text(value: Any) -> str:
    if isinstance(value, tuple):
        return f"[{', '.join(map(_text, value))}]"
    if isinstance(value, float):
        return repr(value)  # TOML writes inf as Python does
    return json.dumps(str(value) if isinstance(value, Path) else value, ensure_ascii=False)
