"""The findings of `kofn experiment codecs` as text: cells for the terminal and for the report alike."""

import math
from collections.abc import Sequence

from run.codecs.evidence import Row
from run.codecs.variants import BASELINE
from run.spread import Spread

LEGEND = (
    "Medians over the seeds, k = n. iterations: to the target accuracy; x int32: a seed's over those of 32-bit lanes; "
    "sent: by all workers, headers included; ratio: bytes of gradients over those in float32; error: norm of what "
    "encoding left over, residual: of what was pending after an iteration, both over the gradient's; accuracy: in the "
    "end; before, of the change, after: iteration times, the median before the link's rate drops, the one in which it "
    "does, and the mean after it."
)

CODEC_HEADINGS = (
    *("codec", "iterations", "min .. max", "x int32", "sent", "ratio", "error", "residual", "accuracy", "reached"),
)
LINK_HEADINGS = (
    *("link", "before", "of the change", "min .. max", "after", "iterations", "sent", "ratio", "accuracy", "reached"),
)


def codec_cells(rows: Sequence[Row]) -> list[list[str]]:
    """A row a variant."""
    baseline = next((row for row in rows if row.variant.name == BASELINE), None)
    return [
        [
            row.variant.name,
            _count(row.iterations.median),
            f"{_count(row.iterations.low)} .. {_count(row.iterations.high)}",
            "-" if baseline is None or math.isinf(row.against(baseline)) else f"{row.against(baseline):.2f}",
            *_sent(row),
            _share(row.error),
            _share(row.residual),
            *_ending(row),
        ]
        for row in rows
    ]


def link_cells(rows: Sequence[Row]) -> list[list[str]]:
    """A row a variant."""
    return [
        [
            row.variant.name,
            _ms(row.before_s.median),
            _ms(row.change_s.median),
            f"{_ms(row.change_s.low)} .. {_ms(row.change_s.high)}",
            _ms(row.after_s.median),
            _count(row.iterations.median),
            *_sent(row),
            *_ending(row),
        ]
        for row in rows
    ]


def _sent(row: Row) -> list[str]:
    return [f"{row.bytes_sent.median / 1e6:.1f} MB", "-" if row.wire_ratio is None else f"{row.wire_ratio.median:.3f}"]


def _ending(row: Row) -> list[str]:
    return [f"{row.accuracy.median:.1%}", f"{row.reached} of {len(row.seeds)}"]


def _count(value: float) -> str:
    return "never" if math.isinf(value) else f"{value:,.0f}"


def _ms(time_s: float) -> str:
    return "-" if math.isinf(time_s) else f"{1e3 * time_s:.1f} ms"


def _share(spread: Spread | None) -> str:
    return "-" if spread is None else f"{spread.median:.2g}"
