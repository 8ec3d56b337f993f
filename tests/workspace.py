"""The distributions of this checkout, their modules, and the imports between them."""

import ast
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]

FOLDERS = {
    "kofn_common": "common",
    "kofn_switch": "switch",
    "kofn_host": "host",
    "kofn_controller": "controller",
    "kofn_torch": "pytorch",
    "kofn_jobs": "jobs",
    "kofn": ".",
}
"""Packages and the folders of their distributions."""

Arrow = tuple[str, str]
"""An import between two modules."""


@cache
def modules() -> dict[str, Path]:
    """Return the files by dotted name."""
    found = {}
    for package, folder in FOLDERS.items():
        for path in sorted((ROOT / folder / package).rglob("*.py")):
            name = ".".join(path.relative_to(ROOT / folder).with_suffix("").parts)
            found[name.removesuffix(".__init__")] = path
    return found


@cache
def imported(path: Path) -> tuple[str, ...]:
    """Return every module that a file imports, anywhere in it."""
    found: list[str] = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found += (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            found += (f"{node.module}.{alias.name}" for alias in node.names)
    return tuple(found)


@cache
def arrows() -> list[Arrow]:
    """Return every import between modules of this repository."""
    found = []
    for name, path in modules().items():
        for target in imported(path):
            found += [(name, each) for each in (target, target.rpartition(".")[0]) if each in modules()][:1]
    return found


def package_of(module: str) -> str:
    return module.partition(".")[0]


def project_of(package: str) -> dict[str, Any]:
    """Return the [project] table of a package's distribution."""
    project: dict[str, Any] = tomllib.loads((ROOT / FOLDERS[package] / "pyproject.toml").read_text())["project"]
    return project
