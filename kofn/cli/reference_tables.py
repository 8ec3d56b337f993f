"""The parts of docs/reference/: comments beside definitions in the code, and tables in Markdown."""

import ast
import inspect
import io
import re
import tokenize


def _assignments(kind: type) -> list[ast.stmt]:
    """The statements of a class's body, with their lines in its own source."""
    tree = ast.parse(inspect.getsource(kind))
    body = tree.body[0]
    assert isinstance(body, ast.ClassDef)
    return body.body


def annotations(kind: type) -> dict[str, str]:
    return {
        one.target.id: ast.unparse(one.annotation)
        for one in _assignments(kind)
        if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name)
    }


def comments(kind: type) -> dict[str, str]:
    """Return the description of each field: the comment on its line, or the string below it."""
    source = inspect.getsource(kind)
    said: dict[int, str] = {}
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT and not token.string.startswith("# noqa"):
            said[token.start[0]] = token.string.removeprefix("#").strip()
    body = _assignments(kind)
    ends = [one.lineno for one in body[1:]] + [len(source.splitlines()) + 1]
    notes: dict[str, str] = {}
    name = ""
    for one, end in zip(body, ends, strict=True):
        if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name):
            name = one.target.id
            notes[name] = " ".join(said[line] for line in range(one.lineno, end) if line in said)
        elif isinstance(one, ast.Expr) and isinstance(one.value, ast.Constant) and name:
            notes[name] = f"{notes[name]} {inspect.cleandoc(str(one.value.value))}".strip().replace("\n", " ")
        else:
            name = ""
    return notes


def table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *([cell.replace("|", "\\|") for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(map(linked, line))} |" for line in lines)


def linked(text: str) -> str:
    """With links to the documents that it names, and "none" as TOML's reader has it."""
    text = re.sub(r"\bdocs/(explanation|howto)/([\w-]+)\.md", r"[\2](../\1/\2.md)", text)
    return re.sub(r"\bNone:", "none:", text)
