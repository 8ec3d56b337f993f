"""Checks a Python that a laboratory's file names, without a change: `PYTHON kofn/run/lab/own_python.py`.

Runs in a checkout's folder, with the machine's Python, which may have nothing but its standard library. The names of
all missing packages go to the standard error in one line, and the exit code is then 1.
"""

import importlib
import re
import sys
import tomllib
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

ROOMS = ("common", "p4src", "switch", "host", "controller")
"""The folders of the distributions whose processes run on machines."""

PARTS = ("kofn_host", "kofn_switch", "kofn_controller")

REQUIREMENT = re.compile(r"(?P<name>[\w.-]+)(?:\[(?P<extras>[\w,-]+)\])?(?:>=(?P<least>[\d.]+))?")


def required(root: Path) -> Iterator[tuple[str, str]]:
    """Yield each package that the processes need, once, and its oldest version ("" if any version will do)."""
    documents = (tomllib.loads((root / room / "pyproject.toml").read_text())["project"] for room in ROOMS)
    projects: dict[str, Any] = {project["name"]: project for project in documents}
    left, known = [*projects], set[str]()
    while left:
        line = left.pop(0)
        found = REQUIREMENT.match(line)
        if line in known or found is None:
            continue
        known.add(line)
        if (project := projects.get(found["name"])) is None:
            yield found["name"], found["least"] or ""
            continue
        left += project.get("dependencies", ())
        for extra in (found["extras"] or "").split(","):
            left += project.get("optional-dependencies", {}).get(extra, ())


def missing(root: Path) -> list[str]:
    """Return the packages that this Python lacks, as requirements for pip."""
    return [f"{name}>={least}" if least else name for name, least in required(root) if not _has(name, least)]


def _has(name: str, least: str) -> bool:
    try:
        return _numbers(metadata.version(name)) >= _numbers(least)
    except metadata.PackageNotFoundError:
        return False


def _numbers(version: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", version)]


def main() -> None:
    root = Path.cwd()
    if lacking := missing(root):
        pip = f"{sys.executable} -m pip install -c {root}/constraints.txt {' '.join(map(repr, lacking))}"
        sys.exit(f"{sys.executable} must have kofn's packages, these are missing: {', '.join(lacking)} - {pip}")
    sys.path[:0] = [str(root / room) for room in ROOMS]
    for part in PARTS:
        importlib.import_module(part)


if __name__ == "__main__":
    main()
