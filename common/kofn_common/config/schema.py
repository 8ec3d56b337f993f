"""The run's TOML file as typed, checked values.

Every key has a default, so an empty file is a run: all workers alike (`kofn run` without a file takes default.toml,
where one of them is blocked). A wrong key, type or bound raises ConfigError with one line that names the field, the
rule and the value found. This module knows nothing of processes, sockets or training.
"""

import math
import re
import tomllib
from collections.abc import Sequence
from ipaddress import IPv4Network
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import msgspec
from msgspec import Meta
from msgspec.structs import force_setattr, replace

from kofn_common.config.compress import ONE_BIT, CompressSection
from kofn_common.config.errors import ConfigError
from kofn_common.config.late_rules import AGE_WEIGHT, RULES, LatePolicy
from kofn_common.config.late_rules import DEFAULT as DEFAULT_RULE
from kofn_common.config.late_rules import RuleChoice as LateGradient
from kofn_common.config.objectives import DEFAULT, check_objective
from kofn_common.config.overrides import Settings, override
from kofn_common.config.plugins import COLLECTIVES, MODULE, STRAGGLERS, WORKLOADS, look_in
from kofn_common.config.rank_text import expand
from kofn_common.config.refusals import refusal
from kofn_common.config.schedule import LayerSection, ScheduleSection
from kofn_common.config.section import Mbps, NotNegative, Positive, PositiveInt, Probability, Section
from kofn_common.config.suggestion import did_you_mean

RACK_WORKERS_MAX = 64
"""A switch's member bitmap has 64 bits for each part (docs/reference/protocol.md)."""

RACKS_MAX = 16
"""A result has a bitmap for each rack (docs/reference/tree.md)."""

WORKERS_MAX = RACK_WORKERS_MAX * RACKS_MAX

SCALE_WORKERS_MAX = 1_000_000
"""The largest number of workers of `kofn simulate --scale`, which has no switch."""

WORDS_MAX = 32
"""256-byte words in the largest packet: WORDS_MAX of p4src/headers.p4."""

SLOTS = 4096
"""Slots of all jobs on a switch together: SLOTS of p4src/headers.p4."""

JOB_MOST = 127
"""The highest id of a job; with its top bit set it is the id of the job's exact sums."""

NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,63}")
"""A run's name is part of a folder's name."""

CLASSES = 10
"""The number of classes of images: the ten digits."""

Average = Literal["gradients", "contributors"]

SCRIPT = "script"
"""The model.workload of trainings by torch.script."""

SCRIPT_RULE: LateGradient = "async"
"""Its default rule for late gradients: PyTorch neither gives up a backward pass nor repeats one."""

TREE_RULE: LateGradient = "stash"
"""The default rule in a tree, whose lanes have room for one contribution of each worker."""

TREE_RULES = ("auto", "stash", "abort", "drop")

SWITCH = "switch"
"""The job.collective for which a controller chooses k."""


class NetworkSection(Section, frozen=True):
    """The network of the run: topology, driver, switch."""

    topology: Path | None = None  # None: a star of job.workers hosts
    driver: Literal["auto", "mininet", "netns"] = "auto"
    target: Literal["embedded", "bmv2"] = "embedded"
    link_mbps: Mbps | None = 200.0  # each host's, without a topology; None: not shaped
    uplink_mbps: Mbps | None = None  # each leaf's to the root, without a topology; None: not shaped
    management: str = "172.30.255.0/24"
    p4runtime_port: Annotated[int, Meta(ge=1, le=65535)] = 50051  # of a tree the root's; the leaves have the next ones
    controller_port: Annotated[int, Meta(ge=1, le=65535)] = 50052
    device_id: Annotated[int, Meta(ge=0, le=2**63 - 1)] = 0  # of a tree the root's; the leaves have the next ones
    trace: Annotated[int, Meta(ge=0)] = 0  # packets whose way through the program the switch writes to switch.log
    pcap: bool = False  # keep every frame of every link of the switch, in pcap/ below the trial
    tls: bool = True  # workers, peers, controller and commands authenticate (docs/explanation/security.md)

    def p4runtime_ports(self, switches: int) -> list[int]:
        """Return each switch's TCP port for P4Runtime: those from p4runtime_port on, except controller_port."""
        ports = range(self.p4runtime_port, self.p4runtime_port + switches + 1)
        return [port for port in ports if port != self.controller_port][:switches]

    def check(self) -> None:
        """Check that ports differ, that the management network is usable, and that BMv2 has the features."""
        if self.trace and self.target == "bmv2":
            raise ConfigError(
                f"network.trace is {self.trace}, network.target is 'bmv2': only 'embedded' traces packets"
            )
        if self.p4runtime_port == self.controller_port:
            raise ConfigError(
                f"network.controller_port is {self.controller_port}, as network.p4runtime_port is: "
                "two different ports are needed"
            )
        try:
            network = IPv4Network(self.management)
        except ValueError as error:
            raise ConfigError(
                f"network.management is {self.management!r}: an IPv4 network is needed, "
                f"172.30.255.0/24 for example ({error})"
            ) from error
        if network.is_loopback or network.is_multicast or network.is_reserved or network.is_unspecified:
            raise ConfigError(f"network.management is {self.management!r}: a network that hosts can have is needed")


class JobSection(Section, frozen=True):
    """The aggregation: workers, packets and slots."""

    id: Annotated[int, Meta(ge=1, le=JOB_MOST)] = 1  # also its multicast group
    collective: str = SWITCH  # sums the gradients: switch, server, ring, gloo, mpi, or module:Name for a custom one
    workers: Annotated[int, Meta(ge=1, le=SCALE_WORKERS_MAX)] = 4  # at most 64 for each rack, unless --scale simulates
    racks: Annotated[int, Meta(ge=1, le=SCALE_WORKERS_MAX)] = (
        1  # 1: one switch; more: a leaf switch each, below a root switch; at most 16, unless --scale simulates
    )
    words: Annotated[int, Meta(ge=1, le=WORDS_MAX)] = 4  # 256-byte words in a packet
    start_workers: PositiveInt | None = None  # number of attached workers at which the job starts; None: all
    slots: Annotated[int, Meta(ge=2, le=SLOTS)] = 1024  # of the switch's; a power of two
    window: PositiveInt = 64  # blocks in flight; a power of two, at most slots / 2
    exact_slots: Annotated[int, Meta(ge=0, le=SLOTS // 2)] = (
        0  # more slots, for exact sums (kofn.Communicator); a power of two; 0: there are no exact sums
    )
    rto_ms: Positive = 50.0  # first retransmission timeout
    packets: Literal["fast", "scapy"] = "fast"  # the packet codec
    modules: str | None = None  # a folder to search for module:Name, after the working folder; None: the TOML file's
    gradient_range: Annotated[float, Meta(gt=0, le=2**20)] = (
        64.0  # largest magnitude of one addend before the first sum; larger ones are clipped into the residual
    )

    @property
    def exact_id(self) -> int:
        """The job id under which the switch keeps its exact sums."""
        return JOB_MOST + 1 + self.id


class PolicySection(Section, frozen=True):
    """The choice of k."""

    objective: str = DEFAULT  # a run's first trial, without run.trials; the objective of a controller started by hand
    margin: NotNegative = 0.05  # change k only when the predicted gain is above this share
    window: PositiveInt = 16  # blocks that an estimate rests on
    decide_every: PositiveInt = 1  # iterations between decisions
    warm_up: PositiveInt = 1  # reports from every live worker before the first decision
    include_after: Annotated[int, Meta(ge=0)] = 0  # await a worker after this many late iterations in a row; 0: never
    late_gradient: LateGradient = "auto"  # the rule for late gradients (late_rules.py); auto: the objective chooses
    age_weight: Probability | None = None  # factor of its weight for each iteration of age; None: by late_gradient
    age_limit: Annotated[int, Meta(ge=1)] = 64  # an older gradient is in no sum

    @property
    def late_policy(self) -> LatePolicy:
        """The policy for late gradients until another one is chosen."""
        rule = DEFAULT_RULE if self.late_gradient == "auto" else self.late_gradient
        return LatePolicy(rule, AGE_WEIGHT if self.age_weight is None else self.age_weight)


class ModelSection(Section, frozen=True):
    """The multilayer perceptron on 8 x 8 images of digits."""

    hidden: tuple[Annotated[int, Meta(ge=1, le=65_536)], ...] = (
        64,
    )  # units of each layer, or channels of each convolution; [960, 960]: a million parameters
    workload: str | None = (
        None  # digits, convolutional, replay, or module:Name for a custom one; None: replay if that is given
    )
    replay: str | None = None  # a folder of .npy files with gradients, relative to the TOML file; None: train
    stragglers: str | None = None  # drawn, trace, or module:Name for a custom one; None: trace if that is given
    trace: str | None = None  # a file of blocking times, relative to the TOML file; None: [[straggler]] and [[shock]]
    batch: Annotated[int, Meta(ge=1, le=65_536)] = 32  # images a worker an iteration
    learning_rate: Positive = 0.1
    momentum: Annotated[float, Meta(ge=0, lt=1)] = 0.9
    average: Average = "gradients"  # the divisor of a sum (docs/explanation/control.md)
    compute_ms: NotNegative = 10.0  # least time of one forward and backward pass: imitates a larger model
    dirichlet: Positive | None = (
        None  # similarity of the workers' classes, alpha: 0.1 low, 100 high; None: dealt evenly
    )

    @property
    def workload_name(self) -> str:
        return self.workload or ("digits" if self.replay is None else "replay")

    @property
    def straggler_source(self) -> str:
        """The source of blocking times."""
        return self.stragglers or ("drawn" if self.trace is None else "trace")

    def check(self) -> None:
        """Check that the plug-ins exist, and that they read all given settings."""
        WORKLOADS.check(self.workload_name, "model.workload")
        STRAGGLERS.check(self.straggler_source, "model.stragglers")
        if self.replay is not None and self.workload_name == "digits":
            raise ConfigError("model.replay and model.workload = 'digits' must not both be given")
        if self.trace is not None and self.straggler_source == "drawn":
            raise ConfigError("model.trace and model.stragglers = 'drawn' must not both be given")


Law = Literal["poisson", "constant", "exponential", "pareto", "bursty"]
"""The law of blocking times: a Poisson number of events of event_ms; always mean_ms; exponential; Pareto (shape 2, from
0 on); or bursts (a Markov chain of two states) with equal blocking, and none outside of them."""


class StragglerSection(Section, frozen=True):
    """Blocking of some workers from an iteration on, until a later entry for the same worker."""

    workers: tuple[Annotated[int, Meta(ge=0)], ...]  # ranks, or text: "all", "rack 3", "0,8-15", "0-:10" (every 10th)
    mean_ms: NotNegative  # mean blocking time an iteration; lambda of law = "poisson"
    law: Law = "poisson"
    event_ms: Positive = 5.0  # tau: duration of one blocking event of law = "poisson"
    burst_share: Annotated[float, Meta(gt=0, lt=1)] = 0.1  # share of iterations in bursts of law = "bursty"
    burst_iterations: Annotated[float, Meta(ge=1, le=1e6)] = 10.0  # mean length of such a burst
    compute_ms: NotNegative | None = None  # other hardware: replaces model.compute_ms
    from_iteration: PositiveInt = 1

    def check(self) -> None:
        """Check that bursts can be as long, and as rare, as both numbers say."""
        most = self.burst_iterations / (1 + self.burst_iterations)
        if self.burst_share > most:
            raise ConfigError(
                f"straggler.burst_share must be at most {most:.3g} with burst_iterations = {self.burst_iterations:g},"
                f" got {self.burst_share:g}: an iteration without blocking comes between two bursts"
            )


class ShockSection(Section, frozen=True):
    """Periods in which every gradient that some workers begin takes longer; several entries add up."""

    workers: tuple[Annotated[int, Meta(ge=0)], ...]  # as straggler.workers
    blocking_ms: Positive  # the additional time
    for_ms: Positive  # length of a period
    share: Probability  # of all time
    common: bool | Literal["rack"] = True  # simultaneous for all of these workers; "rack": for those of each rack;
    # false: separate periods for each

    def draws(self, rank: int, job: JobSection) -> tuple[int, ...]:
        """Return the part of the seed that differs between workers with separate periods."""
        if self.common == "rack":
            return (rank // (job.workers // job.racks),)
        return () if self.common else (rank,)


class ShardSection(Section, frozen=True):
    """One worker that alone holds all training images of some classes, and no others."""

    worker: Annotated[int, Meta(ge=0)]
    classes: tuple[Annotated[int, Meta(ge=0, lt=CLASSES)], ...]

    def check(self, owners: dict[int, int]) -> None:
        """Add its classes to those that have an owner already."""
        if not self.classes:
            raise ConfigError(f"shard.classes of worker {self.worker} is empty: one or more classes are needed")
        for label in self.classes:
            if label in owners:
                raise ConfigError(
                    f"shard.classes of worker {self.worker} has {label}, which worker {owners[label]} holds:"
                    " each class can be given once"
                )
            owners[label] = self.worker


class FaultSection(Section, frozen=True):
    """Faults of some workers' packets in the network, while it is in force; several entries add up."""

    where: Literal["host", "switch", "uplink"] = "host"  # a worker's transport, its port or a leaf's uplink (embedded)
    workers: tuple[Annotated[int, Meta(ge=0)], ...] | None = None  # None: all; not at uplinks
    racks: tuple[Annotated[int, Meta(ge=0)], ...] | None = None  # of the uplinks; None: all
    direction: Literal["send", "receive", "both"] = "both"  # as the worker, or the rack, sees it
    packets: tuple[PositiveInt, ...] | None = None  # only these, counted from 1 for each worker and direction
    blocks: tuple[Annotated[int, Meta(ge=0)], ...] | None = None  # only those of these blocks; not at the switch
    drop: Probability = 0.0
    duplicate: Probability = 0.0
    corrupt: Probability = 0.0  # one bit flips, anywhere
    reorder: Probability = 0.0  # held back until the next one has passed, 20 ms at most
    delay_ms: NotNegative = 0.0  # of every packet
    jitter_ms: NotNegative = 0.0  # more delay, uniform from 0: reorders
    from_s: NotNegative = 0.0  # since the worker started; at the switch: since the first packet of the worker's port
    until_s: Annotated[float, Meta(ge=0)] = math.inf

    def check(self, target: str) -> None:
        """Check that the fault has an effect, and a place that can cause it."""
        if self.until_s <= self.from_s:
            raise ConfigError(f"fault.until_s must be more than fault.from_s = {self.from_s}, got {self.until_s}")
        effects = ("drop", "duplicate", "corrupt", "reorder", "delay_ms", "jitter_ms")
        if not any(getattr(self, effect) for effect in effects):
            raise ConfigError(f"fault does nothing: one or more of {', '.join(effects)} above 0 are needed")
        if self.blocks is not None and self.where != "host":
            raise ConfigError(f"fault.where must be 'host' with fault.blocks, got {self.where!r}")
        other = self.workers if self.where == "uplink" else self.racks
        if other is not None:
            named = "workers" if self.where == "uplink" else "racks"
            raise ConfigError(f"fault.{named} must not be given with fault.where = {self.where!r}, got {list(other)}")
        for field in ("workers", "racks", "packets", "blocks"):
            if getattr(self, field) == ():
                raise ConfigError(f"fault.{field} must have one or more numbers, got none: leave it out for all")
        if self.where != "host" and target == "bmv2":
            raise ConfigError(
                f"fault.where must be 'host' with network.target = 'bmv2', got {self.where!r}: BMv2's ports have no"
                " fault layer"
            )


ACTIONS = ("kill", "start", "objective")


class EventSection(Section, frozen=True):
    """An intervention during the run: exactly one of kill, start and objective.

    A worker whose first event is a start is a late joiner, not started with the others (see job.start_workers).
    """

    at_iteration: PositiveInt  # once any worker has finished this iteration
    kill: str | None = None  # "switch" (of a tree: "root", "leaf-R"), "controller" or "worker-R": SIGKILL
    start: str | None = None  # the same names: a restart, or a late start
    after_s: NotNegative = 0.0  # delay after that
    objective: str | None = None  # as for `kofn set-k`

    def actions(self) -> dict[str, str]:
        """Return those of the three that are given."""
        return {name: value for name in ACTIONS if (value := getattr(self, name)) is not None}


class LinkSection(Section, frozen=True):
    """A new rate of some workers' links, in both directions, until a later entry for the same worker."""

    workers: tuple[Annotated[int, Meta(ge=0)], ...]  # as straggler.workers
    mbps: Mbps
    at_iteration: PositiveInt  # once any worker has finished this iteration
    after_s: NotNegative = 0.0  # delay after that, for example into the middle of an iteration

    def check(self) -> None:
        """Check that it names workers."""
        if not self.workers:
            raise ConfigError("link.workers must have one or more numbers, got none")


class CpuSection(Section, frozen=True):
    """A limited processor for some workers' processes, until a later entry for the same worker.

    A limit of the kernel (a cgroup's cpu.max, or cpu.cfs_quota_us) stops them once they have used their share of 20 ms.
    Where no cgroup can be made, a load of the right weight runs on the one processor that the worker is then bound to.
    Only `kofn run` does it; its effect can be recorded (--record-stragglers) and then simulated.
    """

    workers: tuple[Annotated[int, Meta(ge=0)], ...]
    share: Annotated[float, Meta(ge=0.05, le=1)]  # of one processor; 1: no limit
    at_iteration: Annotated[int, Meta(ge=0)] = 0  # once any worker has finished this iteration; 0: from the start
    after_s: NotNegative = 0.0  # delay after that

    def check(self) -> None:
        """Check that it names workers."""
        if not self.workers:
            raise ConfigError("cpu.workers must have one or more numbers, got none")


class TorchSection(Section, frozen=True):
    """A script in PyTorch that torchrun starts at each worker, in place of kofn's own training."""

    script: str | None = None  # relative to the TOML file; None: model.workload is trained
    arguments: tuple[str, ...] = ()  # of the script
    group: Literal["job", "worker"] = "job"  # one process group of all workers, or one for each, which may rejoin
    max_restarts: Annotated[int, Meta(ge=0)] = 0  # by torchrun, of a worker that dies; of all, where group = "job"
    device: Literal["script", "auto"] = "script"  # auto: each worker sees one accelerator of this machine, in turn

    def check(self, workload: str, collective: str, late: str, cpu: Sequence["CpuSection"], *, alone: bool) -> None:
        """Check that only the script is trained, with a ledger, and with settings that it can follow."""
        if (self.script is not None) != (workload == SCRIPT):
            given = "given" if self.script is not None else "not given"
            raise ConfigError(
                f"model.workload must be {SCRIPT!r} with torch.script, and only then, got {workload!r} and a script"
                f" {given}"
            )
        if self.script is None and self.device != "script":
            raise ConfigError(f"torch.device must be 'script' without torch.script, got {self.device!r}")
        if self.script is not None and collective == "gloo" and self.group != "job":
            raise ConfigError(
                f"torch.group must be 'job' with job.collective = 'gloo', got {self.group!r}: gloo sums in the script's"
                " process group"
            )
        if self.script is not None and alone:
            raise ConfigError("run.alone must be false with torch.script, got true: no script is trained alone")
        if self.script is not None and cpu:
            raise ConfigError("cpu and torch.script must not both be given: a script is torchrun's process")
        allowed = [name for name, rule in RULES.items() if not (rule.gives_up or rule.repeats)]
        if self.script is not None and late not in ("auto", *allowed):
            raise ConfigError(
                f"policy.late_gradient must be one of {', '.join(allowed)} with torch.script, got {late!r}"
            )


class RunSection(Section, frozen=True):
    """The trials, with the same seed and stragglers, one after another."""

    name: str = "default"
    seed: Annotated[int, Meta(ge=0)] = 1
    seeds: Annotated[int, Meta(ge=1, le=1000)] = 1  # seeds of every trial, from run.seed on; 3 or more for a claim
    trials: tuple[str, ...] = ()  # objectives; the last one is the baseline.  None: policy.objective, then "all"; only
    # that where job.collective is not "switch"
    target: float | None = (
        None  # of the workload's metric, which ends a trial; None: its own, 0.95 for digits' accuracy
    )
    accuracy_over: Annotated[int, Meta(ge=1, le=1000)] = 1  # evaluations whose mean is a value of the metric
    evaluate_every: PositiveInt = 1  # iterations; in between the metric is unknown
    max_iterations: PositiveInt = 1000
    shift_every: Annotated[int, Meta(ge=0)] = 0  # iterations after which every worker's blocking goes to the next rank
    alone: bool = False  # also train one worker alone, beside the last trial, as a baseline of summing
    record: bool = False  # keep every contribution and result of every worker, for checking (large)
    checkpoint_every: Annotated[int, Meta(ge=0)] = 0  # iterations from one checkpoint to the next; 0: none
    checkpoint_keep: PositiveInt = 2  # newest checkpoints that stay
    trial_deadline_s: Positive = 900.0  # a trial that takes longer is stopped with an error


class ScaleSection(Section, frozen=True):
    """The models of `kofn simulate --scale` (docs/explanation/scale.md)."""

    noise_scale: NotNegative = 2.0  # phi, in units of a worker's batch
    correlation: Positive = 10.0  # L, iterations after which half of a gradient's direction remains
    gradient_mb: NotNegative = 0.0  # megabytes of a gradient on the wire
    overhead_ms: NotNegative = 0.0  # of an iteration beyond the k-th gradient and the network: sum and step
    rack_share: Probability = 0.0  # an iteration ends when this share of the racks has its part of k; 0: with any k


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
        """Fill in the trials: without the switch there is no choice of k. A script is the workload."""
        if not self.run.trials:
            chosen = (self.policy.objective,) if self.job.collective == SWITCH else ()
            force_setattr(self, "run", replace(self.run, trials=tuple(dict.fromkeys((*chosen, "all")))))
        if self.job.racks > 1 and self.job.collective == SWITCH and self.policy.late_gradient == "auto":
            force_setattr(self, "policy", replace(self.policy, late_gradient=TREE_RULE))
        if self.torch.script is not None:
            self._become_scripted()

    def _become_scripted(self) -> None:
        """Set the defaults for a script. Where workers sum among themselves, none is late."""
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

        `sharing`: workers whose packets share one link (source: the rate-adaptive compression document, B / n). A
        custom topology alone knows its links, so without compress.pace_mbps nothing is paced there.
        """
        if self.compress.pace_mbps is not None:
            return self.compress.pace_mbps
        return (self.network.link_mbps or 0.0) / sharing if self.network.topology is None else 0.0

    @classmethod
    def load(cls, path: Path, settings: Settings = (), *, scale: bool = False) -> Self:
        """Read and check a TOML file, with other values by `settings`; ConfigError names the field that is wrong.

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
        """Read and check the text of such a file."""
        try:
            document = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise ConfigError(f"not TOML: {error}") from error
        return cls.of(document, settings, scale=scale)

    @classmethod
    def of(cls, document: dict[str, Any], settings: Settings = (), *, scale: bool = False) -> Self:
        """Check a TOML document, with `settings` as above. ConfigError names the field that is wrong."""
        override(document, settings)
        expand(document, JobSection().workers)
        try:
            config = msgspec.convert(document, cls, dec_hook=lambda kind, value: kind(value))
        except msgspec.ValidationError as error:
            raise refusal(error, document, cls) from error
        config.check(scale=scale)
        return config

    def at(self, folder: Path) -> Self:
        """Return it with absolute paths for every process, relative to this folder, where modules
        are looked for, too."""
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
        """Return it with its file's folder, if it names modules, for processes that read it elsewhere."""
        names = (self.compress.codec, self.job.collective, self.model.workload_name, self.model.straggler_source)
        if self.job.modules is not None or not any(map(MODULE.fullmatch, (*names, *self.objectives))):
            return self
        return replace(self, job=replace(self.job, modules=str(folder.resolve())))

    def check(self, *, scale: bool = False) -> None:
        """Check bounds that types cannot express, or that span fields; with `scale` not those of switches."""
        if not NAME.fullmatch(self.run.name):
            raise ConfigError(f"run.name must be up to 64 letters, digits, '.', '_' and '-', got {self.run.name!r}")
        self.network.check()
        self._check_racks()
        if not scale:
            self._check_switches()
        COLLECTIVES.check(self.job.collective, "job.collective")
        if self.job.slots & (self.job.slots - 1):
            raise ConfigError(f"job.slots must be a power of two from 2 to 4096, got {self.job.slots}")
        if self.job.slots % (2 * self.job.window):
            most = self.job.slots // 2
            raise ConfigError(
                f"job.window must be a power of two from 1 to {most} (job.slots / 2), got {self.job.window}"
            )
        if self.job.exact_slots & (self.job.exact_slots - 1) or self.job.exact_slots == 1:
            raise ConfigError(
                f"job.exact_slots must be 0, or a power of two from 2 to {SLOTS // 2}, got {self.job.exact_slots}"
            )
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
        if (self.job.start_workers or 1) > self.job.workers:
            raise ConfigError(
                f"job.start_workers must be 1 to {self.job.workers} (job.workers), got {self.job.start_workers}"
            )
        for event in self.event:
            self._check_event(event)
        self._check_workers()

    def _check_workers(self) -> None:
        """Check what concerns some workers only."""
        for entry in self.straggler:
            self._check_ranks(entry.workers, "straggler.workers")
            entry.check()
        for shock in self.shock:
            self._check_ranks(shock.workers, "shock.workers")
        self._check_shards()
        for fault in self.fault:
            self._check_fault(fault)
        for link in self.link:
            self._check_ranks(link.workers, "link.workers")
            link.check()
        for cpu in self.cpu:
            self._check_ranks(cpu.workers, "cpu.workers")
            cpu.check()

    def _check_switches(self) -> None:
        """Check that a switch for each rack can sum its workers, and one more the racks."""
        racks, workers = self.job.racks, self.job.workers
        if racks > RACKS_MAX:
            raise ConfigError(f"job.racks must be 1 to {RACKS_MAX}, got {racks}")
        if workers // racks > RACK_WORKERS_MAX:
            raise ConfigError(
                f"job.workers must be 1 to {RACK_WORKERS_MAX * racks} with job.racks = {racks}, got {workers}"
            )
        if self.network.p4runtime_ports(len(self.switches))[-1] > 65535:
            raise ConfigError(
                f"network.p4runtime_port must leave ports up to 65535 for {len(self.switches)} switches, got"
                f" {self.network.p4runtime_port}"
            )

    def _check_racks(self) -> None:
        """Check that each rack has the same number of workers, and that leaves can do what the job asks for."""
        racks, workers = self.job.racks, self.job.workers
        if workers % racks:
            raise ConfigError(f"job.workers must be a multiple of job.racks ({racks}), got {workers}")
        slots = self.job.slots + self.job.exact_slots
        if racks > 1 and slots > SLOTS // 2:
            raise ConfigError(
                f"job.slots and job.exact_slots must be at most {SLOTS // 2} together with job.racks = {racks}, got"
                f" {slots}: a leaf keeps two sums for each"
            )
        if racks > 1 and self.job.collective == "server":
            raise ConfigError("job.collective must not be 'server' with job.racks, got it: a server is at one switch")
        if racks > 1 and self.policy.late_gradient not in TREE_RULES:
            raise ConfigError(
                f"policy.late_gradient must be one of {', '.join(TREE_RULES)} with job.racks, got"
                f" {self.policy.late_gradient!r}: a lane of a tree has room for one contribution of each worker"
            )
        for text in self.objectives if racks > 1 else ():
            named = check_objective(text, workers, "run.trials")
            if named is not None and named.rule is not None and named.rule not in TREE_RULES:
                raise ConfigError(
                    f"run.trials must name one of {', '.join(TREE_RULES[1:])} with job.racks, got {text!r}"
                )
        if racks > 1 and self.compress.codec == ONE_BIT:
            raise ConfigError(f"compress.codec must not be {ONE_BIT!r} with job.racks, got it: a leaf sums no votes")

    def _check_fault(self, fault: FaultSection) -> None:
        """Check that the fault's workers, or racks, are the job's."""
        self._check_ranks(fault.workers or (), "fault.workers")
        racks = self.job.racks
        if fault.where == "uplink" and racks == 1:
            raise ConfigError("fault.where must not be 'uplink' with job.racks = 1, got it: one switch has none")
        if any(rack >= racks for rack in fault.racks or ()):
            raise ConfigError(f"fault.racks must be 0 to {racks - 1} (job.racks - 1), got {list(fault.racks or ())}")
        fault.check(self.network.target)

    def _check_event(self, event: EventSection) -> None:
        """Check that an event is one action on an existing process."""
        given = event.actions()
        if len(given) != 1:
            raise ConfigError(f"event must have exactly one of {', '.join(ACTIONS)}, got {', '.join(given) or 'none'}")
        if event.objective is not None:
            check_objective(event.objective, self.job.workers, "event.objective")
            return
        action, name = given.popitem()
        processes = [*self.control_plane, *(f"worker-{rank}" for rank in range(self.job.workers))]
        if name not in processes:
            meant = did_you_mean(name, processes)
            raise ConfigError(f"event.{action} must be one of {', '.join(processes)}, got {name!r}{meant}")

    def _check_shards(self) -> None:
        """Check: one shard a worker, one owner a class; the other workers have the other classes."""
        if self.shard and self.model.replay is not None:
            raise ConfigError("shard and model.replay must not both be given: a replay reads no image")
        if self.shard and self.model.dirichlet is not None:
            raise ConfigError("shard and model.dirichlet must not both be given: each deals the images out")
        owners: dict[int, int] = {}
        sharing = set(range(self.job.workers))
        for shard in self.shard:
            self._check_ranks((shard.worker,), "shard.worker")
            if shard.worker not in sharing:
                raise ConfigError(f"a worker must have one shard, got two for shard.worker {shard.worker}")
            sharing.remove(shard.worker)
            shard.check(owners)
        left = [label for label in range(CLASSES) if label not in owners]
        if left and not sharing:
            raise ConfigError(f"shard leaves no worker for the classes {left}: give them to one, or leave one without")
        if sharing and not left:
            raise ConfigError(f"shard leaves no class for the workers {sorted(sharing)}: leave one, or give them some")

    def _check_ranks(self, ranks: tuple[int, ...], field: str) -> None:
        """Check that every rank is a worker's."""
        for rank in ranks:
            if rank >= self.job.workers:
                raise ConfigError(f"{field} must be 0 to {self.job.workers - 1} (job.workers - 1), got {rank}")
