"""Parses the documents into headings, links and code blocks."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

FENCE = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NOTE = re.compile(r"<!-- ([^\n]*) -->\n$")


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block: its language, the comment on the line above, and its text."""

    language: str
    note: str
    text: str


@cache
def documents() -> tuple[Path, ...]:
    """Return all Markdown files of the repository."""
    folders = ("docs", "switch/kofn_switch", "mininet", "examples")
    return (*sorted(ROOT.glob("*.md")), *(path for name in folders for path in sorted((ROOT / name).rglob("*.md"))))


def blocks(path: Path) -> Iterator[Block]:
    """Yield the fenced blocks of a document, in order."""
    text = path.read_text()
    for found in FENCE.finditer(text):
        note = NOTE.search(text[: found.start()])
        yield Block(found[1], note[1] if note else "", found[2])


def prose(path: Path) -> str:
    """Return a document without its fenced blocks."""
    return FENCE.sub("", path.read_text())


@cache
def anchors(path: Path) -> frozenset[str]:
    """Return the anchors of a document's headings, as GitHub and mkdocs both form them."""
    found = re.findall(r"^#+ (.*)$", prose(path), re.MULTILINE)
    return frozenset(anchor(heading) for heading in found)


def anchor(heading: str) -> str:
    """Return a heading's anchor: letters, digits, hyphens."""
    plain = re.sub(r"[^\w\s-]", "", re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)).strip().lower()
    return re.sub(r"\s", "-", plain)


def links(path: Path) -> Iterator[str]:
    """Yield the targets of a document's links within the repository."""
    text = re.sub(r"`[^`\n]*`", "", prose(path).replace("](", "]\0(")).replace("]\0(", "](")
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if not target.startswith(("http://", "https://", "mailto:")):
            yield target
