"""Cells of a summary's table: numbers as text."""

from collections.abc import Mapping, Sequence
from typing import Any

from kofn_common.results.ranks import each


def seconds(value: float | None) -> str:
    """Format a duration; "never" without a value."""
    return "never" if value is None else f"{value:.1f} s"


def milliseconds(value: float | None) -> str:
    """Format a short time; "-" without a value."""
    return "-" if value is None else f"{value * 1e3:.1f} ms"


def integer(value: int | None) -> str:
    """Format a number; "-" without a value."""
    return "-" if value is None else f"{value:,}"


def ratio(value: float | None) -> str:
    """Format a ratio of two times; "-" without a value."""
    return "-" if value is None else f"{value:.2f}"


def significant(value: float | None) -> str:
    """Format four digits; "-" without a value."""
    return "-" if value is None else f"{value:.4g}"


def counts(by_k: Mapping[Any, int]) -> str:
    """Format how often each k was used, or other counts by name."""
    return ", ".join(f"{k} ({count})" for k, count in by_k.items())


def by_worker(several: Sequence[int]) -> str:
    """Format the sum of counts, and each worker's count."""
    return f"{sum(several):,} ({each(several, '{:.0f}'.format)})"


def percentages(several: Sequence[float]) -> str:
    """Format each worker's part of a whole."""
    return each([100 * part for part in several], "{:.3g}".format, separator="/") + " %"


def weights(several: Sequence[float]) -> str:
    """Format the sum of weights, and each worker's weight."""
    return f"{sum(several):.1f} ({each(several, '{:.1f}'.format)})"


def traffic(size: int | None, packets: int | None) -> str:
    """Format bytes, and packets if these are known."""
    if size is None:
        return "-"
    return f"{size / 1e6:.1f} MB" + ("" if packets is None else f" in {packets:,} packets")


def link_bytes(links: Mapping[str, tuple[int, int]]) -> str:
    """Format the bytes of all hosts together, to the switch and from the switch."""
    if not links:
        return "-"
    sent, received = (sum(several) for several in zip(*links.values(), strict=True))
    return f"{sent / 1e6:.1f}/{received / 1e6:.1f} MB"


def shares(times_s: Mapping[str, float]) -> str:
    """Format the parts of an iteration's time in per cent: code is encode, sum and decode, net is send and receive."""
    if not times_s:
        return "-"
    whole = sum(times_s.values())
    parts = (("compute",), ("encode", "sum", "decode"), ("send", "receive"), ("wait",), ("step",))
    return "/".join(f"{100 * sum(times_s[name] for name in part) / whole:.0f}" for part in parts) + " %"
