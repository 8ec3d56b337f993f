"""The text and JSON of `kofn experiment codecs`."""

from collections.abc import Iterator

from kofn.experiments.codecs.arms import ITERATIONS, Arms, VariantArm
from kofn.experiments.codecs.variants import BASELINE, DIGITS, LINKS
from kofn.experiments.tables import Columns, TextTable, count, middle, milliseconds, shown, span

LEGEND = (
    "Medians over the seeds, k = n. iterations: to the target accuracy; x int32: a seed's iterations over those of "
    "32-bit lanes; sent: bytes of all workers, headers included; ratio: bytes of gradients over their bytes in "
    "float32; error: norm of the encoding error over the gradient's norm; residual: norm of the values pending after "
    "an iteration over the gradient's norm; accuracy: at the end; before: median iteration time before the link's rate "
    "drops; of the change: time of the iteration in which the rate drops; after: mean iteration time afterwards."
)


def iterations(value: float) -> str:
    return count(value, never="never")


def _time(arm: VariantArm, name: str) -> str:
    return milliseconds(arm.spread(name).median)


def _share(arm: VariantArm, name: str) -> str:
    return shown(middle(arm.known_spread(name)), "{:.2g}")


VARIANT: Columns[VariantArm] = {
    "iterations": lambda arm: iterations(arm.spread(ITERATIONS).median),
    "sent": lambda arm: f"{arm.spread('bytes_sent').median / 1e6:.1f} MB",
    "ratio": lambda arm: shown(middle(arm.known_spread("wire_ratio")), "{:.3f}"),
    "accuracy": lambda arm: f"{arm.spread('final_accuracy').median:.1%}",
    "reached": lambda arm: f"{arm.reached} of {len(arm.seeds)}",
}
"""The columns that both tables have."""


def _codec_columns(arms: Arms) -> Columns[VariantArm]:
    baseline = arms.get(BASELINE)
    return {
        "codec": lambda arm: arm.variant.name,
        "iterations": VARIANT["iterations"],
        "min .. max": lambda arm: span(arm.spread(ITERATIONS), iterations),
        "x int32": lambda arm: "-" if baseline is None else shown(arm.against(baseline), never="-"),
        "sent": VARIANT["sent"],
        "ratio": VARIANT["ratio"],
        "error": lambda arm: _share(arm, "encoding_error"),
        "residual": lambda arm: _share(arm, "residual"),
        "accuracy": VARIANT["accuracy"],
        "reached": VARIANT["reached"],
    }


LINK: Columns[VariantArm] = {
    "link": lambda arm: arm.variant.name,
    "before": lambda arm: _time(arm, "before_s"),
    "of the change": lambda arm: _time(arm, "change_s"),
    "min .. max": lambda arm: span(arm.spread("change_s"), milliseconds),
    "after": lambda arm: _time(arm, "after_s"),
    **VARIANT,
}


def tables(arms: Arms) -> Iterator[TextTable]:
    """Yield the tables of codecs, and of links that slow down; a row for each variant."""
    for columns, variants in ((_codec_columns(arms), DIGITS), (LINK, LINKS)):
        if rows := [arm for arm in arms.values() if arm.variant in variants]:
            yield TextTable.of(columns, rows)


def document(arm: VariantArm) -> dict[str, object]:
    return {
        "variant": arm.variant,
        "target": arm.fact("target"),
        "seeds": arm.seeds,
        "reached": arm.reached,
        "iterations_by_seed": arm.values(ITERATIONS),
        "iterations": arm.spread(ITERATIONS),
        "accuracy": arm.spread("final_accuracy"),
        "bytes_sent": arm.spread("bytes_sent"),
        "wire_ratio": arm.known_spread("wire_ratio"),
        "error": arm.known_spread("encoding_error"),
        "residual": arm.known_spread("residual"),
        "before_s": arm.spread("before_s"),
        "change_s": arm.spread("change_s"),
        "after_s": arm.spread("after_s"),
        "change_by_seed_s": arm.values("change_s"),
        "after_by_seed_s": arm.values("after_s"),
        "failures": arm.failures,
    }
