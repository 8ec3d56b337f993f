"""What a trial sent of its gradients, from its workers' lines: bytes, ratio, and what compression left over."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Self

from kofn.results.worker_metrics import Iteration

SHOWN = 0.0005
"""The least share of misfits that does not round to 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compressed:
    """Means over all iterations of all workers; norms are L2, in units of the gradient."""

    wire_bytes: int
    """Of values that were sent, in all, again and again where need was; without headers."""
    wire_ratio: float
    """Their share of the gradients' bytes in float32."""
    ratio: float | None
    """The share that was planned."""
    gradient_norm: float | None
    error_norm: float | None
    """Of what encoding left over of what was sent."""
    residual_norm: float | None
    """Of all that was pending after the iteration."""
    refused_width: int | None = None
    """Bits of the narrowest lanes that the ratio asked for in vain, as they would have left over too much."""
    refused_share: float = 0.0
    """Of the iterations, in how many narrower lanes were refused."""
    refused_error: float | None = None
    """Share of the gradient's squared norm that these were expected to leave over."""
    lost_norm: float | None = None
    """Of what an iteration discarded so that residuals are kept in fewer bits; None where they are exact."""
    expanding: float | None = None
    """Share of blocks whose step is too large for a vote's residual to shrink; None without votes."""
    misfits: float | None = None
    """Share of the gradients' elements that became 0, or that lanes of 32 bits clipped."""

    @classmethod
    def of(cls, lines: Iterable[Iteration]) -> Self | None:
        """None where no line says what was sent."""
        known = [line for line in lines if line.wire_bytes is not None and line.wire_ratio is not None]
        if not known:
            return None
        refused = [line.refused_width for line in known if line.refused_width is not None]
        return cls(
            wire_bytes=sum(line.wire_bytes or 0 for line in known),
            wire_ratio=fmean(line.wire_ratio or 0.0 for line in known),
            ratio=_mean(known, planned_ratio),
            gradient_norm=_mean(known, lambda line: None if line.gradient_norm2 is None else line.gradient_norm2**0.5),
            error_norm=_mean(known, lambda line: line.error_norm),
            residual_norm=_mean(known, lambda line: line.residual_norm),
            refused_width=min(refused, default=None),
            refused_share=len(refused) / len(known),
            refused_error=_mean(known, lambda line: line.refused_error),
            lost_norm=_mean(known, lambda line: line.lost_norm),
            expanding=_mean(known, lambda line: line.expanding),
            misfits=_mean(known, lambda line: line.misfits),
        )

    @property
    def error(self) -> float | None:
        """The error's norm over the gradient's."""
        return _over(self.error_norm, self.gradient_norm)

    @property
    def residual(self) -> float | None:
        """The residual's norm over the gradient's."""
        return _over(self.residual_norm, self.gradient_norm)

    @property
    def sent(self) -> str:
        """Bytes and ratio, for people."""
        planned = "" if self.ratio is None else f", planned {self.ratio:.2f}"
        return f"{self.wire_bytes / 1e6:.1f} MB, ratio {self.wire_ratio:.2f}{planned}"

    @property
    def refused(self) -> str:
        """Which narrower lanes were refused, how often and why, for people."""
        if self.refused_width is None or self.refused_error is None:
            return "-"
        return f"{self.refused_width} bits in {self.refused_share:.0%} of iterations: error {self.refused_error:.0%}"


def planned_ratio(line: Iteration) -> float | None:
    """The share of the gradient's bytes that was planned: what was asked for, or less where the lanes are narrower.

    Where narrower lanes were refused, everything is sent in the lanes that remain.
    """
    if line.ratio is None or line.width is None:
        return None
    return line.width / 32 if line.refused_width is not None else min(line.ratio, line.width / 32)


def compressed_rows(several: Sequence[Compressed | None]) -> list[list[str]]:
    """Rows of a summary's table, a cell a trial; the last three only where there is something to say."""
    refused = ["-" if one is None else one.refused for one in several]
    lost = ["-" if one is None else _norm(one.lost_norm, _over(one.lost_norm, one.gradient_norm)) for one in several]
    expanding = ["-" if one is None or one.expanding is None else f"{one.expanding:.1%}" for one in several]
    return [
        ["gradients sent", *("-" if one is None else one.sent for one in several)],
        ["compression error", *("-" if one is None else _norm(one.error_norm, one.error) for one in several)],
        ["residual", *("-" if one is None else _norm(one.residual_norm, one.residual) for one in several)],
        *(
            [label, *cells]
            for label, cells in (
                ("narrower lanes refused", refused),
                ("lost to rounded residuals", lost),
                ("steps too large", expanding),
            )
            if any(cell != "-" for cell in cells)
        ),
    ]


def misfit_rows(several: Sequence[Compressed | None]) -> list[list[str]]:
    """Return a row of the shares of misfits, a cell a trial, or none where they round to 0."""
    shares = [(one and one.misfits) or 0.0 for one in several]
    return (
        [["elements that did not fit", *(f"{share:.1%}" for share in shares)]]
        if max(shares, default=0.0) >= SHOWN
        else []
    )


def _norm(norm: float | None, share: float | None) -> str:
    """A norm, and what it is of the gradient's."""
    if norm is None:
        return "-"
    return f"{norm:.3g}" if share is None else f"{norm:.3g}, {share:.0%} of the gradient"


def _mean(lines: Sequence[Iteration], value: Callable[[Iteration], float | None]) -> float | None:
    known = [number for line in lines if (number := value(line)) is not None]
    return fmean(known) if known else None


def _over(norm: float | None, gradient: float | None) -> float | None:
    return norm / gradient if norm is not None and gradient else None
