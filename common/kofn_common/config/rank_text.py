"""Ranks as text, in place of a list: "all", "last 2", "rack 3", or numbers and ranges as in "0,8-15", "0-99:5" (every
5th) and "0-:5" (every 5th of all).
"""

import re
from typing import Any

from kofn_common.config.errors import ConfigError

SECTIONS = ("straggler", "shock", "fault", "link", "cpu")
"""The sections whose entries have workers."""

RANGE = re.compile(r"(\d+)(?:-(\d*)(?::([1-9]\d*))?)?", re.ASCII)

RACK = re.compile(r"rack (\d+)", re.ASCII)

LAST = re.compile(r"last (\d+)", re.ASCII)


def expand(document: dict[str, Any], workers: int) -> None:
    """Replace every text of ranks in a TOML document by the list of ranks; `workers` is the default of job.workers."""
    job = document.get("job")
    given = job if isinstance(job, dict) else {}
    count, racks = given.get("workers", workers), given.get("racks", 1)
    if not isinstance(count, int) or not isinstance(racks, int) or racks < 1:
        return  # refused by the schema
    for section in SECTIONS:
        entries = document.get(section)
        for entry in entries if isinstance(entries, list) else ():
            if isinstance(entry, dict) and isinstance(entry.get("workers"), str):
                entry["workers"] = ranks(entry["workers"], count, f"{section}.workers", racks=racks)


def ranks(text: str, workers: int, field: str, racks: int = 1) -> list[int]:
    """Return the ranks that a text names, ascending. Racks have equally many workers.

    >>> ranks("0-9:4,20", 64, "straggler.workers")
    [0, 4, 8, 20]
    >>> ranks("rack 1", 8, "straggler.workers", racks=4)
    [2, 3]
    >>> ranks("last 2", 8, "straggler.workers")
    [6, 7]
    """
    if text == "all":
        return list(range(workers))
    if (rack := RACK.fullmatch(text)) is not None:
        if int(rack[1]) >= racks:
            raise ConfigError(f"{field} must be 'rack 0' to 'rack {racks - 1}' with job.racks = {racks}, got {text!r}")
        size = workers // racks
        return list(range(int(rack[1]) * size, (int(rack[1]) + 1) * size))
    if (end := LAST.fullmatch(text)) is not None:
        if not 1 <= int(end[1]) <= workers:
            wanted = f"'last 1' to 'last {workers}' with job.workers = {workers}"
            raise ConfigError(f"{field} must be {wanted}, got {text!r}")
        return list(range(workers - int(end[1]), workers))
    found = set[int]()
    for part in text.split(","):
        match = RANGE.fullmatch(part.strip())
        if match is None:
            known = "a list of ranks, 'all', 'last 2', or text like '0-9,20-98:2'"
            raise ConfigError(f"{field} must be {known}, got {text!r}")
        first, last, step = match.groups()
        if last == "":
            last = str(workers - 1)
        if int(last or first) >= workers:
            raise ConfigError(f"{field} must be 0 to {workers - 1} (job.workers - 1), got {last or first}")
        found.update(range(int(first), int(last or first) + 1, int(step or 1)))
    return sorted(found)
