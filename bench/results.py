"""docs/RESULTS.md from the figures in bench/results, and measuring them again.

A figure is a JSON file: a claim, the command that measures it, its output, and where and when. The command
writes the page. With names of files it first measures these, one after another, and writes their files:

    python -m bench.results                        the page
    python -m bench.results switch-speed faults    measure two again, then the page
    python -m bench.results --list                 the names, with commit and date
"""

import argparse
import re
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from bench.tables import say
from kofn_common.results.provenance import Provenance

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "bench" / "results"
PAGE = ROOT / "docs" / "RESULTS.md"

UNKNOWN = "two cores, not recorded further"
"""The machine of figures that were measured before figures had a file each."""

INTRODUCTION = """\
# Results

`make results` prints this page from the JSON files in [bench/results](../bench/results): each has a claim, the command
that measures it, its output, the commit, the machine and the date. `python -m bench.results NAME` measures one again. A
claim that does not hold stays here as **NO**.
"""


class Figure(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One measurement; the name of its file is its name."""

    section: str
    order: int  # on the page
    claim: str  # a sentence that holds or does not
    holds: bool
    command: str  # for a shell, in the checkout's root
    output: list[str]  # lines
    meaning: str = ""  # of columns and rows, in Markdown
    seeds: str = ""
    commit: str = ""
    date: str = ""  # ISO 8601
    machine: str = ""
    judged: str = "exit"  # "exit": holds where the command ends with 0 and prints no NO; "hand": by a person


def figures() -> dict[str, Figure]:
    """Return all by name, in the page's order."""
    read = {path.stem: msgspec.json.decode(path.read_bytes(), type=Figure) for path in FOLDER.glob("*.json")}
    return dict(sorted(read.items(), key=lambda item: item[1].order))


def page(found: dict[str, Figure]) -> str:
    """Return the page as Markdown."""
    sections: dict[str, dict[str, Figure]] = {}
    for name, one in found.items():
        sections.setdefault(one.section, {})[name] = one
    rows = [f"| {title} | {_links(ones, True)} | {_links(ones, False)} |" for title, ones in sections.items()]
    parts = [INTRODUCTION, "\n".join(["| | claims that hold | claims that do not |", "|---|---|---|", *rows])]
    for title, ones in sections.items():
        parts.append(f"## {title}")
        for name, one in ones.items():
            parts += _shown(name, one)
    return "\n\n".join(part.strip("\n") for part in parts) + "\n"


def measure(name: str, one: Figure) -> None:
    """Run the figure's command and write its file; lines with paths of results are left out.

    A command that prints nothing is an error.
    """
    say(f"{name}: {one.command}")
    done = subprocess.run(one.command, shell=True, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    output = [line.rstrip() for line in done.stdout.splitlines() if line.strip() and "runs/" not in line]
    if not output:
        sys.exit(f"bench.results: {name}: the command printed nothing and ended with {done.returncode}")
    here = Provenance.here()
    one.output, one.date = output, datetime.now(UTC).date().isoformat()
    one.commit = here.commit[:12] + "+" * here.commit.endswith("+")
    one.machine = f"{here.machine}; {here.cores} cores, {here.memory_bytes / 2**30:.0f} GiB; {here.kernel}"
    if one.judged == "exit":
        one.holds = done.returncode == 0 and not any(line.startswith("NO ") for line in output)
    write(name, one)


def write(name: str, one: Figure) -> None:
    (FOLDER / f"{name}.json").write_bytes(msgspec.json.format(msgspec.json.encode(one), indent=1) + b"\n")


def _shown(name: str, one: Figure) -> list[str]:
    source = ", ".join(filter(None, (one.seeds, one.machine or UNKNOWN, f"commit {one.commit}", one.date)))
    return [
        f"### {name}",
        f"{one.claim}: {_answer(one)}.",
        f"```sh\n{one.command}\n```",
        "```text\n" + "\n".join(one.output) + "\n```",
        *([one.meaning] if one.meaning else []),
        f"*{source}*",
    ]


def _links(ones: dict[str, Figure], holds: bool) -> str:
    return ", ".join(f"[{name}](#{_anchor(name)})" for name, one in ones.items() if one.holds == holds)


def _answer(one: Figure) -> str:
    return "yes" if one.holds else "**NO**"


def _anchor(name: str) -> str:
    return re.sub(r"[^a-z0-9-]", "", name.lower())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="figures to measure again")
    parser.add_argument("--list", action="store_true", help="print the names")
    options = parser.parse_args()
    found = figures()
    if unknown := [name for name in options.names if name not in found]:
        parser.error(f"names must be of {', '.join(found)}; got {', '.join(unknown)}")
    if options.list:
        for name, one in found.items():
            print(f"{name:24} {'yes' if one.holds else 'NO ':4} {one.date}  {one.commit}  {one.claim}")
        return
    for name in options.names:
        measure(name, found[name])
    PAGE.write_text(page(found))


if __name__ == "__main__":
    main()
