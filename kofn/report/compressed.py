"""The gradient bytes of a trial, from its workers' lines: bytes, ratio, and the errors of compression."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Self

from kofn_common.results.worker_metrics import Iteration

SHOWN = 0.0005
"""The smallest share of misfits that does not round to 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compressed:
    """Means over all iterations of all workers; norms are L2, in units of the gradient."""

    wire_bytes: int
    """Bytes of all values sent, retransmissions included, without headers."""
    wire_ratio: float
    """The sent share of the gradients' bytes in float32."""
    ratio: float | None
    """The planned share."""
    gradient_norm: float | None
    error_norm: float | None
    """The norm of the error that encoding made in the sent values."""
    residual_norm: float | None
    """The norm of all pending values after the iteration."""
    refused_width: int | None = None
    """Bits of the narrowest lanes that the ratio demanded and that were refused because of their error."""
    refused_share: float = 0.0
    """Share of the iterations in which narrower lanes were refused."""
    refused_error: float | None = None
    """The error expected of the refused lanes, as a share of the gradient's squared norm."""
    lost_norm: float | None = None
    """The norm of the values that an iteration discarded to keep residuals in fewer bits; None if
    residuals are exact."""
    expanding: float | None = None
    """Share of blocks whose quantisation step is too large for a vote's residual to shrink; None without votes."""
    misfits: float | None = None
    """Share of the gradients' elements that became 0, or that lanes of 32 bits clipped."""

    @classmethod
    def of(cls, lines: Iterable[Iteration]) -> Self | None:
        """Return the means; None if no line has the bytes that were sent."""
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
        """The error's norm divided by the gradient's norm."""
        return _over(self.error_norm, self.gradient_norm)

    @property
    def residual(self) -> float | None:
        """The residual's norm divided by the gradient's norm."""
        return _over(self.residual_norm, self.gradient_norm)

    @property
    def sent(self) -> str:
        """Return bytes and ratio as text."""
        planned = "" if self.ratio is None else f", planned {self.ratio:.2f}"
        return f"{self.wire_bytes / 1e6:.1f} MB, ratio {self.wire_ratio:.2f}{planned}"

    @property
    def refused(self) -> str:
        """Return the refused lanes, how often they were refused, and their error, as text."""
        if self.refused_width is None or self.refused_error is None:
            return "-"
        return f"{self.refused_width} bits in {self.refused_share:.0%} of iterations: error {self.refused_error:.0%}"


def planned_ratio(line: Iteration) -> float | None:
    """Return the planned share of the gradient's bytes: the planned ratio, or the lanes' width / 32 if that is less.

    If narrower lanes were refused, the share is the width / 32 of the lanes that replaced them: all blocks are sent.
    """
    if line.ratio is None or line.width is None:
        return None
    return line.width / 32 if line.refused_width is not None else min(line.ratio, line.width / 32)


def compressed_rows(trials: Sequence[Compressed | None]) -> list[list[str]]:
    """Return rows of a summary's table, with a cell for each trial. The last three rows appear only if they have
    values."""
    refused = ["-" if entry is None else entry.refused for entry in trials]
    lost = [
        "-" if entry is None else _norm(entry.lost_norm, _over(entry.lost_norm, entry.gradient_norm))
        for entry in trials
    ]
    expanding = ["-" if entry is None or entry.expanding is None else f"{entry.expanding:.1%}" for entry in trials]
    return [
        ["gradients sent", *("-" if entry is None else entry.sent for entry in trials)],
        ["compression error", *("-" if entry is None else _norm(entry.error_norm, entry.error) for entry in trials)],
        ["residual", *("-" if entry is None else _norm(entry.residual_norm, entry.residual) for entry in trials)],
        *(
            [label, *cells]
            for label, cells in (
                ("narrower lanes refused", refused),
                ("lost to rounded residuals", lost),
                ("quantisation steps too large", expanding),
            )
            if any(cell != "-" for cell in cells)
        ),
    ]


def misfit_rows(trials: Sequence[Compressed | None]) -> list[list[str]]:
    """Return a row with the shares of misfits, with a cell for each trial; no row if all shares round to 0."""
    shares = [(entry and entry.misfits) or 0.0 for entry in trials]
    return (
        [["elements that did not fit", *(f"{share:.1%}" for share in shares)]]
        if max(shares, default=0.0) >= SHOWN
        else []
    )


def _norm(norm: float | None, share: float | None) -> str:
    """Return a norm, and its share of the gradient's norm."""
    if norm is None:
        return "-"
    return f"{norm:.3g}" if share is None else f"{norm:.3g}, {share:.0%} of the gradient"


def _mean(lines: Sequence[Iteration], value: Callable[[Iteration], float | None]) -> float | None:
    known = [number for line in lines if (number := value(line)) is not None]
    return fmean(known) if known else None


def _over(norm: float | None, gradient: float | None) -> float | None:
    return norm / gradient if norm is not None and gradient else None
