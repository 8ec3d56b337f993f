"""What `kofn doctor` walks along: one hop after another, until the first one that fails.

Knows nothing of what the hops check.
"""

from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from run.errors import RunError

WIDTH = 80  # columns


class HopError(RunError):
    """A hop that fails: what was measured, and what to do about it."""

    def __init__(self, detail: str, advice: str) -> None:
        """Both in one line each."""
        super().__init__(detail)
        self.detail = " ".join(detail.split())
        self.advice = advice


class HopSkipped(Exception):  # noqa: N818  # no failure: there is nothing to check here
    """A hop that does not apply; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hop:
    """A name, and a check that gives what was measured or raises HopError or HopSkipped."""

    name: str
    check: Callable[[], Awaitable[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What became of a hop."""

    name: str
    state: str  # "ok", "FAILED", "skipped"
    detail: str
    advice: str = ""

    def text(self) -> str:
        """For a person: a line, or one for each thing that was measured where all do not fit one."""
        head = f"{self.state:7} {self.name:14} "
        whole = len(head) + len(self.detail) <= WIDTH
        return head + (self.detail if whole else self.detail.replace("; ", "\n" + " " * len(head)))

    def document(self) -> dict[str, Any]:
        """For another program."""
        return {"name": self.name, "state": self.state, "detail": self.detail, "advice": self.advice}


def by_detail(found: Mapping[str, str]) -> str:
    """Several details in one: `h1, h3: this; h2: that`."""
    names: dict[str, list[str]] = {}
    for name, detail in found.items():
        names.setdefault(detail, []).append(name)
    return "; ".join(f"{', '.join(who)}: {detail}" for detail, who in names.items())


async def walk(hops: list[Hop], show: Callable[[Finding], object]) -> list[Finding]:
    """Check one hop after another; after the first that fails the others are skipped, as they rest on it."""
    findings: list[Finding] = []
    for hop in hops:
        failed = first_failure(findings)
        finding = await _check(hop) if failed is None else _resting(hop, failed)
        show(finding)
        findings.append(finding)
    return findings


def first_failure(findings: list[Finding]) -> Finding | None:
    """The hop that is to be mended."""
    return next(_failures(findings), None)


def _failures(findings: list[Finding]) -> Iterator[Finding]:
    return (finding for finding in findings if finding.state == "FAILED")


async def _check(hop: Hop) -> Finding:
    """One hop."""
    try:
        return Finding(name=hop.name, state="ok", detail=await hop.check())
    except HopSkipped as reason:
        return Finding(name=hop.name, state="skipped", detail=str(reason))
    except HopError as error:
        return Finding(name=hop.name, state="FAILED", detail=error.detail, advice=error.advice)


def _resting(hop: Hop, failed: Finding) -> Finding:
    return Finding(name=hop.name, state="skipped", detail=f"rests on {failed.name!r}")
