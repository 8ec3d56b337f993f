"""A script's configuration: a Config, a file, TOML text or tables, with overrides for some keys.

>>> load("[job]\\nworkers = 8", {"model": {"learning_rate": 0.05}}).model.learning_rate
0.05
>>> load({"job": {"workers": 65}})
Traceback (most recent call last):
kofn_common.config.errors.ConfigError: job.workers must be 1 to 64 with job.racks = 1, got 65
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict

import msgspec
from msgspec.structs import replace

from kofn_common.config.errors import ConfigError
from kofn_common.config.schema import Config

Given = Config | Path | str | Mapping[str, Any]
"""Text with a line break or a `=` is TOML, other text is a path."""

Keys = Mapping[str, Any]


class Sections(TypedDict, total=False):
    """Overrides for keys of a section; a list of tables is replaced as a whole."""

    run: Keys
    network: Keys
    job: Keys
    compress: Keys
    policy: Keys
    model: Keys
    torch: Keys
    schedule: Keys
    scale: Keys
    layer: Sequence[Keys]
    straggler: Sequence[Keys]
    shock: Sequence[Keys]
    shard: Sequence[Keys]
    fault: Sequence[Keys]
    link: Sequence[Keys]
    cpu: Sequence[Keys]
    event: Sequence[Keys]


def load(given: Given, sections: Mapping[str, Any] | None = None) -> Config:
    """Return the configuration, checked. ConfigError names the field that is wrong.

    Relative paths in the configuration start in its file's folder, or in the working folder if there is no file.
    """
    if not isinstance(given, Config | Path | str | Mapping):
        raise ConfigError(f"the configuration must be a Config, a path, TOML or tables, got a {type(given).__name__}")
    settings = _plain(sections or {})
    path = path_of(given)
    if path is not None:
        return _with_topology(Config.load(path, settings), path.parent)
    assert not isinstance(given, Path)
    config = Config.parse(given, settings) if isinstance(given, str) else Config.of(_tables(given), settings)
    return _with_topology(config.at(Path.cwd()), Path.cwd())


def path_of(given: Given) -> Path | None:
    """Return the path of the file; None for other forms."""
    if isinstance(given, Path):
        return given
    return Path(given) if isinstance(given, str) and not ("\n" in given or "=" in given) else None


def _tables(given: Config | Mapping[str, Any]) -> dict[str, Any]:
    """Return the tables as in a file, without trials that a Config derives from its policy."""
    tables: dict[str, Any] = _plain(given)
    if isinstance(given, Config) and given.run.trials == Config(job=given.job, policy=given.policy).run.trials:
        del tables["run"]["trials"]
    return tables


def _plain(value: Any) -> Any:
    """Return a value as TOML's reader gives it; converts paths and NumPy's numbers, too."""
    return msgspec.to_builtins(value, enc_hook=lambda other: other.item() if hasattr(other, "item") else str(other))


def _with_topology(config: Config, folder: Path) -> Config:
    """Return the configuration with the absolute path of its topology, if it has one."""
    topology = config.network.topology
    if topology is None:
        return config
    return replace(config, network=replace(config.network, topology=(folder / topology).resolve()))
