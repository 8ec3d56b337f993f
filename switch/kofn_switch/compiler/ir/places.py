"""The place in the P4 source of an object in the BMv2 JSON."""

from collections.abc import Mapping
from typing import Any

from kofn_switch.compiler.ir.program import Place

Json = Mapping[str, Any]


def place_of(item: Json) -> Place:
    """Return the place in the P4 source that p4c noted with a JSON object."""
    info = item.get("source_info") or {}
    return Place(file=info.get("filename", ""), line=info.get("line", 0), fragment=info.get("source_fragment", ""))
