"""Classes stay small: their methods and the parameters of their constructors are counted."""

import ast
from collections.abc import Iterator

import pytest

from tests.workspace import modules

METHODS, PARAMETERS = 25, 8
"""Limits: methods and properties in a class's own body, and parameters of its __init__ besides self.

The fields of a dataclass do not count: it has no __init__ of its own.
"""

EXCEPTIONS = {
    "kofn_host.protocol.core.Protocol": "opens a struct core, which has these numbers and no others",
    "kofn_host.collectives.in_network.InNetwork": "is the user's own call: all but four are options, by keyword",
    "kofn_switch.engine.engine.Engine": "likewise: the options of kofn-switch, by keyword",
}
"""Classes whose constructors have more parameters, and why."""


def classes() -> Iterator[tuple[str, ast.ClassDef]]:
    """Yield every class of the package with its module."""
    for name, path in modules().items():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                yield name, node


def methods(of: ast.ClassDef) -> dict[str, ast.FunctionDef | ast.AsyncFunctionDef]:
    """Return the methods by name; a property and its setter are one."""
    return {node.name: node for node in of.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


def parameters(of: ast.ClassDef) -> int:
    init = methods(of).get("__init__")
    return 0 if init is None else len(init.args.posonlyargs + init.args.args + init.args.kwonlyargs) - 1


@pytest.mark.slow
def test_classes_have_few_methods_and_their_constructors_few_parameters() -> None:
    found = list(classes())
    assert len(found) > 500, "the walk must find all classes"
    large = {f"{module}.{each.name}": len(methods(each)) for module, each in found if len(methods(each)) > METHODS}
    assert not large
    wide = {f"{module}.{each.name}" for module, each in found if parameters(each) > PARAMETERS}
    assert wide == EXCEPTIONS.keys(), "each exception must still be needed"


def test_methods_are_counted_by_name() -> None:
    (of,) = ast.parse("class A:\n @property\n def a(self): ...\n @a.setter\n def a(self, value): ...").body
    assert isinstance(of, ast.ClassDef)
    assert len(methods(of)) == 1
