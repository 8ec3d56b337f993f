"""Documents against CRDs: the structural schema, unknown fields, and CEL rules."""

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import cel
import jsonschema

PUBLISHED = Path(__file__).parent / "crds" / "published.json"


@cache
def published() -> dict[str, Any]:
    """Return apiVersion, source and schema by kind."""
    return json.loads(PUBLISHED.read_text())


def faults(schema: dict[str, Any], document: Any, old: Any = None) -> list[str]:
    """Describe everything that an API server would refuse or prune."""
    closed = _closed(schema)
    found = [
        f"{error.json_path}: {error.message}" for error in jsonschema.Draft7Validator(closed).iter_errors(document)
    ]
    return found + list(_broken_rules(schema, document, old, "$"))


def _closed(schema: Any) -> Any:
    """Return a schema that refuses the fields that a server would prune silently; int-or-string becomes JSON schema."""
    if not isinstance(schema, dict):
        return schema
    found = dict(schema)
    for key in ("items", "additionalProperties"):
        if key in found:
            found[key] = _closed(found[key])
    if "properties" in found:
        found["properties"] = {name: _closed(each) for name, each in found["properties"].items()}
        if not found.get("x-kubernetes-preserve-unknown-fields"):
            found["additionalProperties"] = False
    return found


def _broken_rules(schema: dict[str, Any], value: Any, old: Any, path: str) -> Iterator[str]:
    for entry in schema.get("x-kubernetes-validations", ()):
        rule = entry["rule"]
        if "oldSelf" in rule and old is None:
            continue
        if not cel.evaluate(rule, {"self": value, "oldSelf": old}):
            yield f"{path}: {entry.get('message') or rule}"
    if isinstance(value, dict):
        for name, each in value.items():
            before = old.get(name) if isinstance(old, dict) else None
            if below := schema.get("properties", {}).get(name):
                yield from _broken_rules(below, each, before, f"{path}.{name}")
    if isinstance(value, list) and isinstance(schema.get("items"), dict):
        for place, each in enumerate(value):
            yield from _broken_rules(schema["items"], each, None, f"{path}[{place}]")
