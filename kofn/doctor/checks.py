"""The engine of `kofn doctor`: one check after another, until the first failure.

The engine knows nothing of the checks' subjects.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from kofn.run.errors import RunError

WIDTH = 80  # columns


class CheckError(RunError):
    """A failure of a check: the measurement, and the remedy."""

    def __init__(self, detail: str, advice: str) -> None:
        """Take the measurement and the remedy, which become a line each."""
        super().__init__(detail)
        self.detail = " ".join(detail.split())
        self.advice = advice


class CheckSkipped(Exception):  # noqa: N818  # no failure: the check does not apply
    """A check that does not apply; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """A named check, which returns its measurement, or raises CheckError or CheckSkipped."""

    name: str
    check: Callable[[], Awaitable[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The result of a check."""

    name: str
    state: str  # "ok", "FAILED", "skipped"
    detail: str
    advice: str = ""

    def text(self) -> str:
        """Return the finding as text: a line, or several if the measurements do not fit into a line."""
        head = f"{self.state:7} {self.name:14} "
        whole = len(head) + len(self.detail) <= WIDTH
        return head + (self.detail if whole else self.detail.replace("; ", "\n" + " " * len(head)))

    def document(self) -> dict[str, Any]:
        return {"name": self.name, "state": self.state, "detail": self.detail, "advice": self.advice}


def by_detail(found: Mapping[str, str]) -> str:
    """Join several details: `h1, h3: this; h2: that`."""
    names: dict[str, list[str]] = {}
    for name, detail in found.items():
        names.setdefault(detail, []).append(name)
    return "; ".join(f"{', '.join(several)}: {detail}" for detail, several in names.items())


async def walk(checks: list[Check], show: Callable[[Finding], object]) -> list[Finding]:
    """Run one check after another; after a failure skip the others, which depend on it."""
    findings: list[Finding] = []
    for check in checks:
        failed = first_failure(findings)
        finding = await _check(check) if failed is None else _skipped(check, failed)
        show(finding)
        findings.append(finding)
    return findings


def first_failure(findings: list[Finding]) -> Finding | None:
    """Return the finding of the first check that failed."""
    return next((finding for finding in findings if finding.state == "FAILED"), None)


async def _check(check: Check) -> Finding:
    try:
        return Finding(name=check.name, state="ok", detail=await check.check())
    except CheckSkipped as reason:
        return Finding(name=check.name, state="skipped", detail=str(reason))
    except CheckError as error:
        return Finding(name=check.name, state="FAILED", detail=error.detail, advice=error.advice)


def _skipped(check: Check, failed: Finding) -> Finding:
    return Finding(name=check.name, state="skipped", detail=f"depends on {failed.name!r}")
