"""What a script gives for a configuration: a Config, a file, TOML text or tables, and other values for some keys.

>>> load("[job]\\nworkers = 8", {"model": {"learning_rate": 0.05}}).model.learning_rate
0.05
>>> load({"job": {"workers": 65}})
Traceback (most recent call last):
kofn.config.errors.ConfigError: job.workers must be 1 to 64, got 65
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict

import msgspec
from msgspec.structs import replace

from kofn.config.errors import ConfigError
from kofn.config.schema import Config

Given = Config | Path | str | Mapping[str, Any]
"""A text with a line break or a `=` is TOML, any other is a path."""

Keys = Mapping[str, Any]


class Sections(TypedDict, total=False):
    """Other values for keys of a section; in place of a list of tables another list."""

    run: Keys
    network: Keys
    job: Keys
    compress: Keys
    policy: Keys
    model: Keys
    torch: Keys
    schedule: Keys
    layer: Sequence[Keys]
    straggler: Sequence[Keys]
    shock: Sequence[Keys]
    shard: Sequence[Keys]
    fault: Sequence[Keys]
    link: Sequence[Keys]
    cpu: Sequence[Keys]
    event: Sequence[Keys]


def load(given: Given, sections: Mapping[str, Any] | None = None) -> Config:
    """The configuration, checked; ConfigError names the field that is wrong.

    Relative paths in it start in the folder of the file, or in the working folder where there is none.
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
    """Of the file; None for what is no path."""
    if isinstance(given, Path):
        return given
    return Path(given) if isinstance(given, str) and not ("\n" in given or "=" in given) else None


def _tables(given: Config | Mapping[str, Any]) -> dict[str, Any]:
    """As in a file; without trials that a Config has only because of its policy."""
    tables: dict[str, Any] = _plain(given)
    if isinstance(given, Config) and given.run.trials == Config(job=given.job, policy=given.policy).run.trials:
        del tables["run"]["trials"]
    return tables


def _plain(value: Any) -> Any:
    """As TOML's reader gives it; also of paths and of NumPy's numbers."""
    return msgspec.to_builtins(value, enc_hook=lambda other: other.item() if hasattr(other, "item") else str(other))


def _with_topology(config: Config, folder: Path) -> Config:
    """With the absolute path of its topology, where it has one."""
    topology = config.network.topology
    if topology is None:
        return config
    return replace(config, network=replace(config.network, topology=(folder / topology).resolve()))
