"""Public names of a package, loaded when they are first used; the package's `__init__.pyi` lists them once.

Importing one module of a package executes the package's `__init__.py`. An `__init__.py` that imports all public modules
would therefore load everything, in a circle. PyPI's lazy_loader reads such stubs, too, but accepts names of one package
only, and kofn's names come from several.
"""

import ast
from collections.abc import Callable, Mapping
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any


@cache
def exports(file: str) -> Mapping[str, str]:
    """Return the module of each name that the stub of an `__init__.py` exports (`from module import Name as Name`).

    A name that the stub annotates (`name: type`) is a module of the package and has an empty string.
    """
    found: dict[str, str] = {}
    for node in ast.parse(Path(file).with_suffix(".pyi").read_text()).body:
        if isinstance(node, ast.ImportFrom):
            found |= {alias.asname: node.module or "" for alias in node.names if alias.asname}
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            found[node.target.id] = ""
    return found


def lazy(package: str, file: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return `__getattr__`, `__dir__` and `__all__` of a package, given its `__name__` and `__file__`."""
    names = sorted(exports(file))

    def find(name: str) -> Any:
        if name not in names:
            raise AttributeError(f"module {package!r} has no attribute {name!r}: it has {', '.join(names)}")
        module = exports(file)[name]
        return getattr(import_module(module), name) if module else import_module(f"{package}.{name}")

    def listed() -> list[str]:
        return sorted({*vars(import_module(package)), *names})

    return find, listed, names
