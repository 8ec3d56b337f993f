"""The CustomResourceDefinition, made from the structs of request.py: `make crd` writes it."""

from typing import Any

import msgspec

from kofn_jobs.manifests import Document
from kofn_jobs.request import GROUP, KIND, PLURAL, VERSION, TrainingSpec, TrainingStatus

COLUMNS = (
    ("Accelerators", "integer", ".spec.accelerators"),
    ("Phase", "string", ".status.phase"),
    ("Ready", "string", ".status.ready"),
    ("k", "integer", ".status.k"),
    ("Iteration", "integer", ".status.iteration"),
    ("Metric", "number", ".status.metric"),
    ("Age", "date", ".metadata.creationTimestamp"),
    ("Message", "string", ".status.message"),
)
WIDE = ("Message",)
"""Columns that need -o wide."""

RULES = (
    ("self == oldSelf", "a request cannot be changed: delete it, and submit another"),
    (
        "!has(self.nodes) || self.nodes.all(n, self.nodes.exists_one(m, m.name == n.name))",
        "nodes must name each node once",
    ),
    (
        "!has(self.elastic) || !has(self.elastic.startWorkers) || self.elastic.startWorkers <= self.accelerators",
        "elastic.startWorkers must be at most accelerators",
    ),
)
NAME_RULE = "self.metadata.name.matches('^[a-z]([-a-z0-9]{0,38}[a-z0-9])?$')"
NAME_WORDS = "up to 40 lower-case letters, digits and '-', from a letter on: pods' names begin with it"

KEPT = ("type", "enum", "minimum", "maximum", "minLength", "maxLength", "maxItems", "pattern", "format", "description")
"""Keywords that a structural schema shares with JSON schema."""


def definition() -> Document:
    """Return the whole object."""
    spec = structural(TrainingSpec)
    spec["x-kubernetes-validations"] = [{"rule": rule, "message": words} for rule, words in RULES]
    schema = {
        "type": "object",
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object"},
            "spec": spec,
            "status": structural(TrainingStatus),
        },
        "x-kubernetes-validations": [{"rule": NAME_RULE, "message": NAME_WORDS}],
    }
    version = {
        "name": VERSION,
        "served": True,
        "storage": True,
        "subresources": {"status": {}},
        "additionalPrinterColumns": [_column(*column) for column in COLUMNS],
        "schema": {"openAPIV3Schema": schema},
    }
    names = {"kind": KIND, "plural": PLURAL, "singular": KIND.lower(), "shortNames": ["tr"]}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{PLURAL}.{GROUP}"},
        "spec": {"group": GROUP, "scope": "Namespaced", "names": names, "versions": [version]},
    }


def _column(name: str, kind: str, path: str) -> Document:
    return {"name": name, "type": kind, "jsonPath": path} | ({"priority": 1} if name in WIDE else {})


def structural(struct: type[msgspec.Struct]) -> Document:
    """Return the schema of a struct without references, which a CRD cannot have."""
    (schema,), definitions = msgspec.json.schema_components([struct], ref_template="{name}")
    return _inline(schema, definitions)


def _inline(schema: dict[str, Any], definitions: dict[str, Any]) -> Document:
    if "$ref" in schema:
        return _inline(definitions[schema["$ref"]], definitions) | _kept(schema)
    if "anyOf" in schema:
        (other,) = (option for option in schema["anyOf"] if option.get("type") != "null")
        return _inline(other, definitions) | _kept(schema)
    found = _kept(schema)
    if "items" in schema:
        found["items"] = _inline(schema["items"], definitions)
    if "properties" in schema:
        found["properties"] = {name: _inline(member, definitions) for name, member in schema["properties"].items()}
    if schema.get("required"):
        found["required"] = schema["required"]
    if schema.get("default") not in (None, (), [], {}, ""):
        found["default"] = schema["default"]
    return found


def _kept(schema: dict[str, Any]) -> Document:
    """Return a schema with the keywords KEPT alone. An enumeration gets the type of its values, which are strings."""
    kept = {key: schema[key] for key in KEPT if key in schema}
    return {"type": "string"} | kept if "enum" in schema else kept


if __name__ == "__main__":
    import yaml  # needs kofn[jobs]

    print("# Made by `python -m kofn_jobs.crd`.")
    print(yaml.safe_dump(definition(), sort_keys=False, width=120), end="")
