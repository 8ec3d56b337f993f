"""For mkdocs: source files that the documents link to become part of the site, below source.

The documents are read in the repository as well, where these links lead to the files themselves.
"""

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
LINK = re.compile(r"\]\((?!https?:|#|mailto:)([^)\s#]+)(#[^)\s]*)?\)")
SHOWN = ".txt"
"""Browsers show such files, and download most others."""


def outside(source: str, target: str) -> str | None:
    """The path from the root of a linked file that is not below docs/; None for one of the documents."""
    path = posixpath.normpath(posixpath.join("docs", posixpath.dirname(source), target))
    return None if path.startswith("docs/") else path


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add every source file that a document links to."""
    wanted: set[str] = set()
    for file in files.documentation_pages():
        for target, _ in LINK.findall(file.content_string):
            path = outside(file.src_uri, target)
            if path is not None:
                wanted.add(path)
    for path in sorted(wanted):
        if (ROOT / path).is_file():
            files.append(File.generated(config, f"source/{path}{SHOWN}", content=(ROOT / path).read_bytes()))
        elif not (ROOT / path).is_dir():
            raise PluginError(f"a document links to {path}, which is not there")
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turn links to source files to their copies; a link to a folder becomes its text."""

    def turned(match: re.Match[str]) -> str:
        path = outside(page.file.src_uri, match[1])
        if path is None:
            return match[0]
        if (ROOT / path).is_dir():
            return f"](#{FOLDER})"
        return "](" + posixpath.relpath(f"source/{path}{SHOWN}", posixpath.dirname(page.file.src_uri) or ".") + ")"

    return re.sub(rf"\[([^\]]*)\]\(#{FOLDER}\)", r"\1", LINK.sub(turned, markdown))


FOLDER = "folder-of-the-repository"
"""Stands for a folder between both steps."""
