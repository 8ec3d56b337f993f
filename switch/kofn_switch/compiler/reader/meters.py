"""Meters of the BMv2 JSON: arrays that actions execute, and direct meters of tables."""

from collections.abc import Callable, Mapping
from typing import Any

from kofn_switch.compiler.ir.expressions import FieldOf
from kofn_switch.compiler.ir.program import DirectMeter, Meter, Place
from kofn_switch.errors import ProgramError

Json = Mapping[str, Any]
PlaceOf = Callable[[Json], Place]
UNITS = ("packets", "bytes")
RATES = 2  # committed and peak


def read_meters(root: Json, place_of: PlaceOf) -> tuple[Meter, ...]:
    """Return the arrays of meters.  Raises ProgramError."""
    return tuple(
        Meter(name=item["name"], size=item["size"], unit=_unit(item, place_of))
        for item in root.get("meter_arrays", [])
        if not item.get("is_direct")
    )


def read_direct_meters(root: Json, place_of: PlaceOf) -> dict[str, DirectMeter]:
    """Return the direct meters by name.  Raises ProgramError."""
    return {
        item["name"]: DirectMeter(
            name=item["name"], unit=_unit(item, place_of), target=FieldOf(*item["result_target"][:2])
        )
        for item in root.get("meter_arrays", [])
        if item.get("is_direct")
    }


def _unit(item: Json, place_of: PlaceOf) -> str:
    if item["rate_count"] != RATES:
        raise ProgramError(f"{place_of(item)}: meter {item['name']} of {item['rate_count']} rates is not executed")
    if item["type"] not in UNITS:
        raise ProgramError(
            f"{place_of(item)}: meter {item['name']} of type {item['type']}; {' or '.join(UNITS)} is known"
        )
    return str(item["type"])
