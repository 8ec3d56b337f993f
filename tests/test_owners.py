"""No owner that nobody can hold in mind: the methods of a class, and the parameters of a constructor, are counted."""

import ast
from collections.abc import Iterator

from tests.test_rooms import modules

METHODS, PARAMETERS = 25, 8
"""At most: methods and properties that a class's own body has, and what its __init__ takes beside self.

The fields of a dataclass are not counted: it has no __init__ of its own.
"""

EXCEPTIONS = {
    "host.protocol.core.Protocol": "opens a struct core, which has these numbers and no others",
    "host.collectives.in_network.InNetwork": "is the user's own call: all but four are options, by keyword",
    "switch.engine.engine.Engine": "likewise: the options of kofn-switch, by keyword",
}
"""Classes whose constructors have more, and why."""


def classes() -> Iterator[tuple[str, ast.ClassDef]]:
    """Every class of the package, and the module that it is in."""
    for name, path in modules().items():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                yield name, node


def methods(of: ast.ClassDef) -> dict[str, ast.FunctionDef | ast.AsyncFunctionDef]:
    """By name: a property and its setter are one."""
    return {node.name: node for node in of.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


def parameters(of: ast.ClassDef) -> int:
    init = methods(of).get("__init__")
    return 0 if init is None else len(init.args.posonlyargs + init.args.args + init.args.kwonlyargs) - 1


def test_a_class_has_few_methods_and_its_constructor_few_parameters() -> None:
    found = list(classes())
    assert len(found) > 500, "all have been looked at"
    large = {f"{module}.{each.name}": len(methods(each)) for module, each in found if len(methods(each)) > METHODS}
    assert not large
    wide = {f"{module}.{each.name}" for module, each in found if parameters(each) > PARAMETERS}
    assert wide == EXCEPTIONS.keys(), "and no exception that is none"


def test_methods_are_counted_by_name() -> None:
    (of,) = ast.parse("class A:\n @property\n def a(self): ...\n @a.setter\n def a(self, value): ...").body
    assert isinstance(of, ast.ClassDef)
    assert len(methods(of)) == 1
