"""The parts of docs/reference/: comments beside definitions in the code, and tables in Markdown."""

import ast
import inspect
import io
import re
import tokenize


def _assignments(kind: type) -> list[ast.stmt]:
    """Return the statements of a class's body, with lines counted in the class's source."""
    tree = ast.parse(inspect.getsource(kind))
    body = tree.body[0]
    assert isinstance(body, ast.ClassDef)
    return body.body


def annotations(kind: type) -> dict[str, str]:
    return {
        statement.target.id: ast.unparse(statement.annotation)
        for statement in _assignments(kind)
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name)
    }


def comments(kind: type) -> dict[str, str]:
    """Return the description of each field: the comment on its line, or the string below it."""
    source = inspect.getsource(kind)
    said: dict[int, str] = {}
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT and not token.string.startswith("# noqa"):
            said[token.start[0]] = token.string.removeprefix("#").strip()
    body = _assignments(kind)
    ends = [statement.lineno for statement in body[1:]] + [len(source.splitlines()) + 1]
    notes: dict[str, str] = {}
    name = ""
    for statement, end in zip(body, ends, strict=True):
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            name = statement.target.id
            notes[name] = " ".join(said[line] for line in range(statement.lineno, end) if line in said)
        elif isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant) and name:
            notes[name] = f"{notes[name]} {inspect.cleandoc(str(statement.value.value))}".strip().replace("\n", " ")
        else:
            name = ""
    return notes


def table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *([cell.replace("|", "\\|") for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(map(linked, line))} |" for line in lines)


def linked(text: str) -> str:
    """Return a text with links to the documents that it names, and with "none" in place of Python's None."""
    text = re.sub(r"\bdocs/(explanation|howto)/([\w-]+)\.md", r"[\2](../\1/\2.md)", text)
    return re.sub(r"\bNone:", "none:", text)
