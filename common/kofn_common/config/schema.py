"""The run's TOML file as typed, checked values.

Every key has a default, so an empty file is a run in which all workers are alike. (`kofn run` without a file takes
default.toml, in which one worker is blocked.) A wrong key, type or bound raises ConfigError with one line that names
the field, the rule and the value found. This package knows nothing of processes, sockets or training. Each table has a
module; this module has the whole configuration, and the checks that span tables.
"""

import tomllib
from pathlib import Path
from typing import Any, Self

import msgspec
from msgspec.structs import force_setattr, replace

from kofn_common.config.compress import CompressSection
from kofn_common.config.errors import ConfigError
from kofn_common.config.faults import FaultSection
from kofn_common.config.interventions import CpuSection, EventSection, LinkSection
from kofn_common.config.job import SWITCH, JobSection
from kofn_common.config.model import ModelSection
from kofn_common.config.network import NetworkSection
from kofn_common.config.objectives import check_objective
from kofn_common.config.overrides import Settings, override
from kofn_common.config.plugins import MODULE, look_in
from kofn_common.config.policy import PolicySection
from kofn_common.config.racks import TREE_RULE, check_racks, check_switches
from kofn_common.config.rank_text import expand
from kofn_common.config.refusals import refusal
from kofn_common.config.run import RunSection
from kofn_common.config.scale import ScaleSection
from kofn_common.config.schedule import LayerSection, ScheduleSection
from kofn_common.config.section import Section
from kofn_common.config.shards import ShardSection, check_shards
from kofn_common.config.stragglers import ShockSection, StragglerSection
from kofn_common.config.torch_script import SCRIPT, SCRIPT_RULE, TorchSection
from kofn_common.wire.sizes import WORKERS_MAX


class Config(Section, frozen=True):
    """One run, complete and checked."""

    run: RunSection = RunSection()
    network: NetworkSection = NetworkSection()
    job: JobSection = JobSection()
    compress: CompressSection = CompressSection()
    policy: PolicySection = PolicySection()
    model: ModelSection = ModelSection()
    torch: TorchSection = TorchSection()
    schedule: ScheduleSection = ScheduleSection()
    scale: ScaleSection = ScaleSection()
    layer: tuple[LayerSection, ...] = ()
    straggler: tuple[StragglerSection, ...] = ()
    shock: tuple[ShockSection, ...] = ()
    shard: tuple[ShardSection, ...] = ()
    fault: tuple[FaultSection, ...] = ()
    link: tuple[LinkSection, ...] = ()
    cpu: tuple[CpuSection, ...] = ()
    event: tuple[EventSection, ...] = ()

    def __post_init__(self) -> None:
        """Set the defaults that depend on other tables: the trials (without the switch there is no choice of k), a
        tree's rule, and a script's workload."""
        if not self.run.trials:
            chosen = (self.policy.objective,) if self.job.collective == SWITCH else ()
            force_setattr(self, "run", replace(self.run, trials=tuple(dict.fromkeys((*chosen, "all")))))
        if self.job.racks > 1 and self.job.collective == SWITCH and self.policy.late_gradient == "auto":
            force_setattr(self, "policy", replace(self.policy, late_gradient=TREE_RULE))
        if self.torch.script is not None:
            self._become_scripted()

    def _become_scripted(self) -> None:
        """Set the defaults for a script. If workers sum among themselves, no gradient is late."""
        if self.model.workload is None:
            force_setattr(self, "model", replace(self.model, workload=SCRIPT))
        if self.policy.late_gradient == "auto" and self.job.collective in (
            SWITCH,
            "server",
        ):  # others have no late gradients
            force_setattr(self, "policy", replace(self.policy, late_gradient=SCRIPT_RULE))

    @property
    def objectives(self) -> tuple[str, ...]:
        later = [event.objective for event in self.event if event.objective is not None]
        return (self.policy.objective, *self.run.trials, *later)

    @property
    def switches(self) -> list[str]:
        """The switches' names in events and logs: the only one, or the root and each rack's leaf."""
        return ["switch"] if self.job.racks == 1 else ["root", *(f"leaf-{rack}" for rack in range(self.job.racks))]

    @property
    def control_plane(self) -> list[str]:
        """The processes that all jobs share."""
        return [*self.switches, "controller"]

    @property
    def owned(self) -> list[int]:
        """The classes that only one worker holds."""
        return [label for shard in self.shard for label in shard.classes]

    def pace_mbps(self, sharing: int = 1) -> float:
        """Return the rate at which a worker's packets leave, in Mbit/s; 0: unpaced.

        `sharing` is the number of workers whose packets share one link (source: the rate-adaptive compression document,
        B / n). In a custom topology the links' rates are not known here, so packets are not paced without
        compress.pace_mbps.
        """
        if self.compress.pace_mbps is not None:
            return self.compress.pace_mbps
        return (self.network.link_mbps or 0.0) / sharing if self.network.topology is None else 0.0

    @classmethod
    def load(cls, path: Path, settings: Settings = (), *, scale: bool = False) -> Self:
        """Read and check a TOML file, with `settings` as overrides; ConfigError names the field that is wrong.

        With `scale` the job may be larger than switches permit.
        """
        try:
            return cls.parse(path.read_text(), settings, scale=scale).at(path.parent)
        except OSError as error:
            raise ConfigError(f"{path}: {error.strerror}") from error
        except UnicodeDecodeError as error:
            raise ConfigError(f"{path}: not TOML: {error}") from error
        except ConfigError as error:
            raise ConfigError(f"{path}: {error}") from error

    @classmethod
    def parse(cls, text: str, settings: Settings = (), *, scale: bool = False) -> Self:
        """Read and check a TOML text, as load() does a file."""
        try:
            document = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise ConfigError(f"not TOML: {error}") from error
        return cls.of(document, settings, scale=scale)

    @classmethod
    def of(cls, document: dict[str, Any], settings: Settings = (), *, scale: bool = False) -> Self:
        """Check a TOML document, as load() does a file. ConfigError names the field that is wrong."""
        override(document, settings)
        expand(document, JobSection().workers)
        try:
            config = msgspec.convert(document, cls, dec_hook=lambda kind, value: kind(value))
        except msgspec.ValidationError as error:
            raise refusal(error, document, cls) from error
        config.check(scale=scale)
        return config

    def at(self, folder: Path) -> Self:
        """Return the configuration with absolute paths, which every process can use. Relative paths start in `folder`,
        where modules are looked for, too."""
        model = self.model
        paths = {"replay": model.replay, "trace": model.trace}
        there = {name: str((folder / path).resolve()) for name, path in paths.items() if path is not None}
        modules = self.job.modules and str((folder / self.job.modules).resolve())
        look_in(modules or str(folder.resolve()))
        script = self.torch.script and str((folder / self.torch.script).resolve())
        return replace(
            self,
            model=replace(model, **there),
            job=replace(self.job, modules=modules),
            torch=replace(self.torch, script=script),
        )

    def at_home(self, folder: Path) -> Self:
        """Return the configuration with its file's folder as job.modules, if it names modules, for processes that read
        it elsewhere."""
        names = (self.compress.codec, self.job.collective, self.model.workload_name, self.model.straggler_source)
        if self.job.modules is not None or not any(map(MODULE.fullmatch, (*names, *self.objectives))):
            return self
        return replace(self, job=replace(self.job, modules=str(folder.resolve())))

    def check(self, *, scale: bool = False) -> None:
        """Check bounds that types cannot express, or that span fields. With `scale` the bounds of switches do not
        hold."""
        self.run.check()
        self.network.check()
        check_racks(self.job, self.policy, self.compress, self.objectives)
        if not scale:
            check_switches(self.job, self.network, len(self.switches))
        self.job.check()
        self.model.check()
        late, alone = self.policy.late_gradient, self.run.alone
        self.torch.check(self.model.workload_name, self.job.collective, late, self.cpu, alone=alone)
        self.schedule.check()
        self.compress.check(
            workers=min(self.job.workers, WORKERS_MAX), words=self.job.words, target=self.network.target
        )
        check_objective(self.policy.objective, self.job.workers, "policy.objective")
        for objective in self.run.trials:
            check_objective(objective, self.job.workers, "run.trials")
        self.job.check_start()
        for event in self.event:
            event.check(self.job.workers, self.control_plane)
        self._check_workers()

    def _check_workers(self) -> None:
        """Check the entries that concern some workers only."""
        for straggler in self.straggler:
            self.job.check_ranks(straggler.workers, "straggler.workers")
            straggler.check()
        for shock in self.shock:
            self.job.check_ranks(shock.workers, "shock.workers")
        check_shards(self.shard, self.job, self.model)
        for fault in self.fault:
            fault.check(self.job, self.network.target)
        for link in self.link:
            link.check(self.job)
        for cpu in self.cpu:
            cpu.check(self.job)
