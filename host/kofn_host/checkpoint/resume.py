"""How a worker begins at a checkpoint: the check that the checkpoint fits the job, and the ledgers to take over."""

from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np

from kofn_common.config.schema import Config
from kofn_host.arrays import Arrays
from kofn_host.checkpoint.folder import Checkpoint
from kofn_host.compression.ledger_state import summed_by_others
from kofn_host.errors import CheckpointError

KEPT = ("model", "compress", "schedule", "layer", "shard")
"""The configuration's sections that must equal the checkpoint's sections: parameters and ledgers depend on them."""


def check_configuration(checkpoint: Checkpoint, config: Config) -> None:
    """Raise CheckpointError if the job has another model or other ledgers than the checkpoint."""
    before, now = checkpoint.manifest.configuration, plain(config)
    pairs = [*((section, before[section], now[section]) for section in KEPT)]
    pairs += [(f"job.{key}", before["job"][key], now["job"][key]) for key in ("id", "words", "collective")]
    for name, then, given in pairs:
        if then != given:
            raise CheckpointError(
                f"{name} must be as in {checkpoint.path}, {_differing(then, given)}: resume with the same"
                " configuration, or begin a new run"
            )


def plain(config: Config) -> dict[str, Any]:
    """Return a configuration as JSON has it."""
    found: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(config))
    return found


def _differing(then: object, given: object) -> str:
    """Return a description of the difference between two sections' keys, or between two values."""
    if isinstance(then, dict) and isinstance(given, dict):
        keys = [key for key in given if given[key] != then.get(key)]
        return ", ".join(f"{key} is {given[key]!r}, was {then.get(key)!r}" for key in keys)
    return f"{then!r}, got {given!r}"


def ledgers_of(checkpoint: Checkpoint, rank: int, workers: int) -> list[Arrays]:
    """Return the ledgers that worker `rank` takes over in a job of `workers` workers.

    A worker takes over its own ledger; the workers share the ledgers of ranks that the job lacks.  The checkpoint may
    lack the ledgers of some workers: worker 0 also takes over the part of all sums that came from these workers.
    """
    manifest = checkpoint.manifest
    found = [checkpoint.ledger(other) for other in manifest.ranks if other % workers == rank]
    if rank == 0 and 0 < len(manifest.ranks) < manifest.workers:
        states: Iterator[Arrays] = map(checkpoint.ledger, manifest.ranks)
        results = checkpoint.replica().arrays["results"].astype(np.int64)
        found.append(summed_by_others(results, states, checkpoint.ledger(manifest.ranks[0])))
    return found
