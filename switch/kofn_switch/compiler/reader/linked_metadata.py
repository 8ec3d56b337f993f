"""Metadata that switch and program share by name; P4_14 programs have it in separate headers.

BMv2 looks for `intrinsic_metadata.mcast_grp` as it looks for `standard_metadata.egress_spec`. This module rewrites the
document so that all of these fields belong to standard_metadata.
"""

from collections.abc import Sequence
from typing import Any

from kofn_switch.compiler.ir.places import Json

STANDARD = "standard_metadata"
LINKED = ("intrinsic_metadata", "queueing_metadata")


def link_metadata(root: Json) -> Json:
    """Return the document with the fields of LINKED headers moved to standard_metadata. Without LINKED headers it is
    unchanged."""
    instances = {item["name"]: item for item in root["headers"]}
    linked = [name for name in LINKED if name in instances and instances[name]["metadata"]]
    if not linked or STANDARD not in instances:
        return root
    types = {item["name"]: item for item in root["header_types"]}
    kind = types[instances[STANDARD]["header_type"]]
    fields = {field[0]: field for name in linked for field in types[instances[name]["header_type"]]["fields"]}
    fields |= {field[0]: field for field in kind["fields"]}
    whole = {**kind, "fields": list(fields.values())}
    return {
        **_renamed(root, linked),
        "header_types": [whole if item is kind else item for item in root["header_types"]],
        "headers": [item for item in root["headers"] if item["name"] not in linked],
    }


def _renamed(item: Any, linked: Sequence[str]) -> Any:
    """Return a part of the document with each field of these headers, [header, field], moved to STANDARD."""
    if isinstance(item, dict):
        return {key: _renamed(value, linked) for key, value in item.items()}
    if not isinstance(item, list):
        return item
    if len(item) == 2 and item[0] in linked and isinstance(item[1], str):
        return [STANDARD, item[1]]
    return [_renamed(value, linked) for value in item]
