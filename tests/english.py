"""A lint of the English in code and reference pages: `make check` fails if it finds a fault.

A docstring is a sentence and begins with none of FRAGMENTS. An error message says what must hold, not what "is
allowed". A reference page describes what is, without history.
"""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]

FRAGMENTS = {"Of", "As", "What", "Who", "Whose", "Whom", "That", "Which", "Where", "Nobody", "Somebody", "None"}
"""First words with which a docstring is no sentence."""

ALLOWED = re.compile(r"\b(?:is|are) allowed\b")

HISTORY = re.compile(
    r"\b(?:quieter (?:machine|hour)|quiet machine|other work|slower hour|printed again|used to|no longer)\b"
)


def faults(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the line and the fault of each place in a Python file or a page."""
    text = (ROOT / path).read_text()
    if path.suffix == ".md":
        for number, line in enumerate(text.splitlines(), 1):
            if found := HISTORY.search(line):
                yield number, f"{found[0]!r} is history, which a reference page does not have"
        return
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and ALLOWED.search(node.value):
            yield node.lineno, "a message must say what must hold: 'job.workers must be 1 to 64, got 65'"
        for statement in node.body if isinstance(getattr(node, "body", None), list) else ():  # type: ignore[attr-defined]
            if not (isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)):
                continue
            first = str(statement.value.value).split(maxsplit=1)[:1]
            if first and first[0].strip(".,:;") in FRAGMENTS:
                yield statement.lineno, f"a docstring must be a sentence, got one that begins with {first[0]!r}"


def main() -> int:
    """Print all faults; 1 where there are any."""
    names = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    paths = [path for path in map(Path, names) if (ROOT / path).is_file() and not (ROOT / path).is_symlink()]
    own = (Path("tests/english.py"), Path("tests/test_english.py"))
    wanted = [path for path in paths if path.suffix == ".py" and path not in own]
    wanted += [path for path in paths if path.suffix == ".md" and path.parts[:2] == ("docs", "reference")]
    found = [f"{path}:{line}: {fault}" for path in wanted for line, fault in sorted(faults(path))]
    print("\n".join(found) or "English: nothing found")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
