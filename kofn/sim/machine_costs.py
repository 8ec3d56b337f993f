"""The costs of this machine: measured once, and kept in the cache, so that every simulation takes the same numbers.

Costs are measured again for another processor, number of cores, kernel, Python, NumPy or code of kofn, and for another
configuration, except for the parts that do not change the costs. A damaged file is measured again, too.
"""

import contextlib
import hashlib
from pathlib import Path

import msgspec
from msgspec.structs import replace

from kofn.run.machine_load import load_note
from kofn.sim.costs import Costs, measure
from kofn_common.config.errors import ConfigError
from kofn_common.config.model import ModelSection
from kofn_common.config.network import NetworkSection
from kofn_common.config.run import RunSection
from kofn_common.config.schema import Config
from kofn_common.nativebuild.library import cache_folder, one_builder
from kofn_common.places import folder_of
from kofn_common.results.provenance import Provenance

CODE = ("kofn_common", "kofn_host", "kofn_controller", "kofn.sim")
"""The packages whose code is measured."""

KEPT = 512
"""The number of files with costs that the cache keeps: those that were measured last."""


def machine_costs(config: Config, *, anew: bool = False) -> Costs:
    """Return the costs of this machine, which are measured if the cache lacks them, or with `anew`.

    Costs that were measured on a busy machine are replaced as soon as the machine is quiet. Only one process of the
    machine measures at a time.
    """
    config = _deciding(config)
    path = cache_folder() / f"costs-{_key(config)}.json"
    with one_builder(path.with_name("costs")):
        kept = None if anew else _kept(path)
        if kept is not None and not (kept.busy and load_note() == ""):
            return kept
        costs = measure(config)
        if kept is not None and costs.busy:
            return kept
        with contextlib.suppress(OSError):  # the cache is read-only: the next command measures again
            costs.save(path)
            _prune(path.parent)
        return costs


def known_costs(path: Path, config: Config) -> Costs:
    """Return the costs in a file; store this machine's costs first if the file is missing. Raise ConfigError if the
    file lacks a cost of the configuration's collective."""
    if not path.exists():
        machine_costs(config).save(path)
    return Costs.load(path, config.job.collective)


def costs_key(config: Config) -> str:
    """Return a hash of the configuration's part on which costs depend, on any machine."""
    return hashlib.sha256(msgspec.json.encode(_deciding(config))).hexdigest()[:16]


def _prune(folder: Path) -> None:
    """Remove all but the KEPT costs that were measured last."""
    for old in sorted(folder.glob("costs-*.json"), key=lambda path: path.stat().st_mtime)[:-KEPT]:
        old.unlink()


def _kept(path: Path) -> Costs | None:
    """Return the costs in a file of the cache; None if the file is missing or damaged."""
    try:
        return Costs.load(path)
    except ConfigError:
        return None


def _deciding(config: Config) -> Config:
    """Return the configuration with defaults for what does not change the costs: seeds, trials, target, learning rate,
    network, events and faults."""
    run = RunSection(evaluate_every=config.run.evaluate_every, shift_every=config.run.shift_every)
    model = replace(config.model, learning_rate=ModelSection().learning_rate)
    return replace(config, run=run, network=NetworkSection(), model=model, fault=(), link=(), event=())


def _key(config: Config) -> str:
    """Return a hash of everything on which the costs depend."""
    here = Provenance.here()
    digest = hashlib.sha256(msgspec.json.encode(config))
    digest.update(repr((here.machine, here.cores, here.kernel, here.python, here.numpy)).encode())
    for package in CODE:
        for path in sorted(folder_of(package).rglob("*.[pch]*")):
            if path.suffix in (".py", ".c", ".h"):
                digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()[:40]
