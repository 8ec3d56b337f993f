"""Where in the P4 source an object of the BMv2 JSON comes from."""

from collections.abc import Mapping
from typing import Any

from kofn.switch.compiler.ir.program import Place

Json = Mapping[str, Any]


def place_of(item: Json) -> Place:
    """The P4 source place that p4c noted with a JSON object."""
    info = item.get("source_info") or {}
    return Place(file=info.get("filename", ""), line=info.get("line", 0), fragment=info.get("source_fragment", ""))
