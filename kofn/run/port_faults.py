"""A run's [[fault]] entries for the switch's ports, as the rules that the embedded switch takes."""

from collections.abc import Iterator, Sequence

from kofn.config.schema import FaultSection
from kofn.switch.engine.faults import FaultRule

DIRECTIONS = {"send": "in", "receive": "out", "both": "both"}
"""A worker's packets go into the switch."""


def port_rules(faults: Sequence[FaultSection], ports: Sequence[int | None]) -> Iterator[FaultRule]:
    """Yield one rule for each fault of the switch and each of its workers; `ports` are the workers' by rank, None for
    those on another switch.
    """
    for fault in faults:
        if fault.where == "switch":
            ranks = range(len(ports)) if fault.workers is None else fault.workers
            for rank in ranks:
                if (port := ports[rank]) is not None:
                    yield _rule(fault, port)


def _rule(fault: FaultSection, port: int) -> FaultRule:
    return FaultRule(
        port=port,
        direction=DIRECTIONS[fault.direction],
        drop=fault.drop,
        duplicate=fault.duplicate,
        corrupt=fault.corrupt,
        reorder=fault.reorder,
        delay_ms=fault.delay_ms,
        jitter_ms=fault.jitter_ms,
        from_s=fault.from_s,
        until_s=fault.until_s,
        packets=fault.packets or (),
    )
