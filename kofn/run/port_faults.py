"""A run's [[fault]] entries for the switch's ports, as the rules that the embedded switch takes."""

from collections.abc import Iterator, Mapping, Sequence

from kofn_common.config.faults import FaultSection
from kofn_switch.engine.faults import FaultRule

DIRECTIONS = {"send": "in", "receive": "out", "both": "both"}
"""By a fault's direction at a worker: the direction at the switch's port. Packets that the worker sends go in."""

UPLINK_DIRECTIONS = {"send": "out", "receive": "in", "both": "both"}
"""By a fault's direction at a rack: the direction at the leaf's port towards the root. Packets that the rack sends go
out."""


def port_rules(
    faults: Sequence[FaultSection], ports: Mapping[int, int], uplinks: Mapping[int, int]
) -> Iterator[FaultRule]:
    """Yield one rule for each fault and each port of the switch that the fault concerns.

    `ports` are the workers' ports by rank; `uplinks` has a leaf's port towards the root, by rack.
    """
    for fault in faults:
        chosen, of = (fault.racks, uplinks) if fault.where == "uplink" else (fault.workers, ports)
        for number, port in of.items() if fault.where != "host" else ():
            if chosen is None or number in chosen:
                yield _rule(fault, port)


def _rule(fault: FaultSection, port: int) -> FaultRule:
    directions = UPLINK_DIRECTIONS if fault.where == "uplink" else DIRECTIONS
    return FaultRule(
        port=port,
        direction=directions[fault.direction],
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
