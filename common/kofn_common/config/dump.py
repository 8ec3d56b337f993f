"""Configurations as TOML: every key of a Config, with defaults and the command line's choices, or plain tables."""

import json
import re
from collections.abc import Iterator, Mapping
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


def tables_to_toml(tables: Mapping[str, Any]) -> str:
    """Return TOML of plain tables: a heading for each table and each entry of a list of tables, inline tables below."""
    parts = []
    for name, value in tables.items():
        several = isinstance(value, list | tuple)
        heading = f"[[{_key(name)}]]" if several else f"[{_key(name)}]"
        for table in value if several else [value]:
            keys = [f"{_key(key)} = {_text(entry)}" for key, entry in table.items()]
            parts.append("\n".join([heading, *keys]) + "\n")
    return "\n".join(parts)


def _lines(table: msgspec.Struct) -> Iterator[str]:
    for name in table.__struct_fields__:
        value = getattr(table, name)
        if value is not None:
            yield f"{name} = {_text(value)}"


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else json.dumps(name, ensure_ascii=False)


def _text(value: Any) -> str:
    if isinstance(value, Mapping):
        return f"{{ {', '.join(f'{_key(key)} = {_text(entry)}' for key, entry in value.items())} }}" if value else "{}"
    if isinstance(value, tuple | list):
        return f"[{', '.join(map(_text, value))}]"
    if isinstance(value, float):
        return repr(value)  # TOML writes inf as Python does
    return json.dumps(str(value) if isinstance(value, Path) else value, ensure_ascii=False)
