"""The claims about codecs and links that slow down, each said yes or no with its numbers."""

import math
from collections.abc import Iterator, Mapping, Sequence

from run.claims import Verdict
from run.codecs.evidence import Row
from run.codecs.variants import ADAPTIVE, BASELINE, NO_FEEDBACK, UNCOMPRESSED

BOUNDS = {"int16": 1.10, "int8": 1.10, "int4": 1.50, "onebit": 1.50}
"""How many times the iterations of 32-bit lanes each may take to the target, with error feedback."""

SHORTER = 2.0
"""How many times shorter an iteration is with the adaptive ratio, where a link drops to a quarter."""

DROPS = {"link-one": "the link of one worker drops to a quarter", "link-all": "all links drop to a quarter"}


def verdicts(rows: Sequence[Row]) -> list[Verdict]:
    """On everything that these rows can tell; a claim that they cannot is left out."""
    by_name = {row.variant.name: row for row in rows}
    return [*_codecs(by_name), *_links(by_name)]


def _codecs(rows: Mapping[str, Row]) -> Iterator[Verdict]:
    """Iterations against those of 32-bit lanes."""
    baseline = rows.get(BASELINE)
    for name, bound in BOUNDS.items():
        if baseline is not None and name in rows:
            yield _within(rows[name], rows.get(f"{name}{NO_FEEDBACK}"), baseline, bound)


def _within(row: Row, without: Row | None, baseline: Row, bound: float) -> Verdict:
    ratio = row.against(baseline)
    numbers = f"{_iterations(row)} against {_iterations(baseline)}: {_times(ratio)}"
    if without is not None:
        numbers += f"; without feedback {_iterations(without)}: {_times(without.against(baseline))}"
    return Verdict(
        claim=f"{row.variant.name}: at the target within {bound:g} times the iterations of {BASELINE}",
        holds=ratio <= bound,
        numbers=numbers,
    )


def _links(rows: Mapping[str, Row]) -> Iterator[Verdict]:
    """Iteration times and accuracy where a link slows down."""
    for base, story in DROPS.items():
        plain, adaptive = rows.get(f"{base}-{UNCOMPRESSED}"), rows.get(f"{base}-{ADAPTIVE}")
        if plain is None or adaptive is None:
            continue
        in_it, after = adaptive.shorter_change(plain), adaptive.shorter_after(plain)
        yield Verdict(
            claim=f"{story}: that iteration at least {SHORTER:g} times shorter with the adaptive ratio",
            holds=in_it >= SHORTER,
            numbers=f"{_ms(adaptive.change_s.median)} against {_ms(plain.change_s.median)}: {in_it:.2f} times",
        )
        yield Verdict(
            claim=f"{story}: the iterations after it at least {SHORTER:g} times shorter",
            holds=after >= SHORTER,
            numbers=f"{_ms(adaptive.after_s.median)} against {_ms(plain.after_s.median)}: {after:.2f} times",
        )
        yield Verdict(
            claim=f"{story}: the target accuracy is reached with the adaptive ratio as without",
            holds=adaptive.reached == len(adaptive.seeds),
            numbers=f"{_accuracy(adaptive)} against {_accuracy(plain)}",
        )


def _accuracy(row: Row) -> str:
    return f"{row.accuracy.median:.1%} after {_iterations(row)}"


def _iterations(row: Row) -> str:
    count = row.iterations.median
    return "never" if math.isinf(count) else f"{count:,.0f} iterations"


def _times(ratio: float) -> str:
    return "-" if math.isinf(ratio) else f"x {ratio:.2f}"


def _ms(time_s: float) -> str:
    return "never" if math.isinf(time_s) else f"{1e3 * time_s:.1f} ms"
