"""Cells of a summary's table: numbers as people read them."""

from collections.abc import Mapping, Sequence

from kofn.results.ranks import each


def seconds(value: float | None) -> str:
    """A time that something took, or never came to."""
    return "never" if value is None else f"{value:.1f} s"


def milliseconds(value: float | None) -> str:
    """A short time, where it is known."""
    return "-" if value is None else f"{value * 1e3:.1f} ms"


def integer(value: int | None) -> str:
    """A number, where it is known."""
    return "-" if value is None else f"{value:,}"


def ratio(value: float | None) -> str:
    """Of two times, where both are known."""
    return "-" if value is None else f"{value:.2f}"


def significant(value: float | None) -> str:
    """Four digits, where it is known."""
    return "-" if value is None else f"{value:.4g}"


def counts(by_k: Mapping[int, int]) -> str:
    """How often each k was used."""
    return ", ".join(f"{k} ({count})" for k, count in by_k.items())


def by_worker(several: Sequence[int]) -> str:
    """The sum, and each worker's part."""
    return f"{sum(several):,} ({each(several, '{:.0f}'.format)})"


def percentages(several: Sequence[float]) -> str:
    """Parts of a whole, worker by worker."""
    return each([100 * part for part in several], "{:.3g}".format, separator="/") + " %"


def weights(several: Sequence[float]) -> str:
    """The sum, and each worker's part."""
    return f"{sum(several):.1f} ({each(several, '{:.1f}'.format)})"


def traffic(size: int | None, packets: int | None) -> str:
    """Bytes, and packets where they are known."""
    if size is None:
        return "-"
    return f"{size / 1e6:.1f} MB" + ("" if packets is None else f" in {packets:,} packets")


def link_bytes(links: Mapping[str, tuple[int, int]]) -> str:
    """Of all hosts together, to the switch and from it."""
    if not links:
        return "-"
    sent, received = (sum(several) for several in zip(*links.values(), strict=True))
    return f"{sent / 1e6:.1f}/{received / 1e6:.1f} MB"


def shares(times_s: Mapping[str, float]) -> str:
    """Where an iteration's time went, in per cent: code is encode, sum and decode, net is send and receive."""
    if not times_s:
        return "-"
    whole = sum(times_s.values())
    parts = (("compute",), ("encode", "sum", "decode"), ("send", "receive"), ("wait",), ("step",))
    return "/".join(f"{100 * sum(times_s[name] for name in part) / whole:.0f}" for part in parts) + " %"
