"""Changes during a trial that the configuration plans, in words: for the marks of figures and the live page."""

from collections.abc import Iterator, Sequence

from kofn_common.config.faults import FaultSection
from kofn_common.config.schema import Config
from kofn_common.results.ranks import name_workers


def straggler_changes(config: Config) -> Iterator[tuple[int, str]]:
    """Yield the first iteration and the effect of each [[straggler]] that does not begin with the training."""
    for entry in config.straggler:
        if entry.from_iteration > 1:
            yield entry.from_iteration, f"{name_workers(entry.workers)} blocked {entry.mean_ms:g} ms on average"


def fault_changes(faults: Sequence[FaultSection]) -> Iterator[tuple[float, str]]:
    """Yield when each [[fault]] begins and ends, in seconds since the workers started."""
    for number, fault in enumerate(faults, 1):
        yield fault.from_s, f"fault {number} begins: {_what(fault)}"
        if fault.until_s < float("inf"):
            yield fault.until_s, f"fault {number} ends"


def describe_fault(fault: FaultSection) -> str:
    """Return a fault's effect, its workers or racks, and its time, in words."""
    since = f" from {fault.from_s:g} s" if fault.from_s else ""
    until = f" until {fault.until_s:g} s" if fault.until_s < float("inf") else ""
    return f"{_what(fault)}{since}{until}"


def _what(fault: FaultSection) -> str:
    shares = [f"{getattr(fault, name):.3g} {words}" for name, words in _SHARES.items() if getattr(fault, name)]
    times = [f"{getattr(fault, name):g} ms {words}" for name, words in _TIMES.items() if getattr(fault, name)]
    whose = "all workers" if fault.workers is None else name_workers(fault.workers)
    if fault.where == "uplink":
        whose = "all racks" if fault.racks is None else f"racks {', '.join(map(str, fault.racks))}"
    return f"{', '.join(shares + times)} of the packets of {whose} ({fault.direction}, at the {fault.where})"


_SHARES = {
    "drop": "lost",
    "duplicate": "duplicated",
    "corrupt": "corrupted",
    "exchange": "with an exchanged iteration",
    "reorder": "reordered",
}
_TIMES = {"delay_ms": "delay", "jitter_ms": "jitter"}
