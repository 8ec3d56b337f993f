"""The parts of a status that commands print with --json. The status is a dict, as rpc.document makes it."""

from collections.abc import Iterable
from typing import Any


def k_document(status: dict[str, Any]) -> dict[str, Any]:
    """Return the part of a status that explains k."""
    chosen = ("k", "live", "workers", "objective", "objective_fault", "iteration", "expected", "overhead_s", "changes")
    measured = ("noise_scale", "alignment")
    pushed = ("switch_k", "switch_differs", "switch_k_age_s", "k_first", "k_certain", "k_torn")
    return _part(status, (*chosen, *measured, *pushed))


def lambda_document(status: dict[str, Any]) -> dict[str, Any]:
    """Return the part of a status that holds the model."""
    return _part(status, ("iteration", "service_s", "event_s", "worker"))


def _part(status: dict[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """Return the fields with these names, in this order."""
    return {name: status[name] for name in names}
