"""The marks of a test file's tests, read from its text: whether it is needed is known before it is imported.

A test certainly has the marks of its decorators, of its class and of `pytestmark`. Parameters, a conftest.py and
imported marks may add any others, so a file is left out only if no further mark could select one of its tests.
"""

import ast
import re
from collections.abc import Iterator
from itertools import chain, combinations
from pathlib import Path

from _pytest.mark.expression import Expression

_MARK = re.compile(r"\bmark\.(\w+)")
_NAME = re.compile(r"\b(?!(?:and|or|not)\b)[A-Za-z_]\w*")


def may_match(path: Path, expression: str) -> bool:
    """Return whether -m EXPRESSION may select a test of the file."""
    wanted, named, text = Expression.compile(expression), {*_NAME.findall(expression)}, path.read_text()
    certain = {*marks_of_tests(ast.parse(text))} if named & {*_MARK.findall(text)} else {frozenset[str]()}
    sets = {sure.union(added) for sure in certain for added in _subsets(named - sure)}
    return any(wanted.evaluate(lambda name, /, **_: name in marks) for marks in sets)  # noqa: B023 - called at once


def marks_of_tests(tree: ast.Module) -> Iterator[frozenset[str]]:
    """Yield the certain marks of each test function; the file's own if it has none, as its tests are imported."""
    everywhere = frozenset(
        name
        for node in tree.body
        if isinstance(node, ast.Assign)
        and any(isinstance(to, ast.Name) and to.id == "pytestmark" for to in node.targets)
        for name in _MARK.findall(ast.unparse(node.value))
    )
    found = [everywhere | marks for marks in _within(tree.body)]
    yield from found or [everywhere]


def _within(body: list[ast.stmt]) -> Iterator[frozenset[str]]:
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test"):
            yield _decorators(node)
        elif isinstance(node, ast.ClassDef):
            yield from (_decorators(node) | marks for marks in _within(node.body))


def _decorators(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> frozenset[str]:
    """Return the marks of the decorators, without those inside of a decorator's arguments."""
    calls = (each.func if isinstance(each, ast.Call) else each for each in node.decorator_list)
    return frozenset(name for call in calls for name in _MARK.findall(ast.unparse(call)))


def _subsets(names: set[str]) -> Iterator[set[str]]:
    return map(set, chain.from_iterable(combinations(names, size) for size in range(len(names) + 1)))
