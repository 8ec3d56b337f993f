"""The run's TOML file as typed, checked values.

Every key has a default, so an empty file is the default run.  A wrong key, type or bound raises ConfigError with one
line that names the field and says what is allowed.  This module knows nothing of processes, sockets or training.
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

from run.compression import Compress
from run.config_errors import check_document
from run.errors import ConfigError
from run.late import AGE_WEIGHT, Treatment
from run.late import DEFAULT as DEFAULT_RULE
from run.late import Choice as LateGradient
from run.objectives import DEFAULT, check_objective
from run.sections import Mbps, NotNegative, Positive, PositiveInt, Probability, Section
from run.settings import override

WORKERS_MAX = 64
"""A result's member bitmap has 64 bits for each part (docs/PROTOCOL.md)."""

WORDS_MAX = 32
"""256-byte words in the largest packet: WORDS_MAX of p4src/headers.p4."""

SLOTS = 4096
"""Slots of all jobs on a switch together: SLOTS of p4src/headers.p4."""

NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,63}")
"""A run's name is part of a folder's name."""

CLASSES = 10
"""Of the images that workers train on: the ten digits."""

Average = Literal["gradients", "contributors"]

CollectiveName = Literal["switch", "server", "ring", "gloo"]
"""What sums gradients: the switch, a parameter server at a host, or the workers themselves over TCP."""

PEER_TO_PEER: tuple[CollectiveName, ...] = ("ring", "gloo")
"""Collectives of workers alone: float32 over TCP, all of them in every sum, no books."""


class Network(Section, frozen=True):
    """Where the run happens: topology, driver, switch."""

    topology: Path | None = None  # None: a star of job.workers hosts
    driver: Literal["auto", "mininet", "netns"] = "auto"
    target: Literal["embedded", "bmv2"] = "embedded"
    link_mbps: Mbps | None = 200.0  # for the default star; None: not shaped
    management: str = "172.30.255.0/24"
    p4runtime_port: Annotated[int, Meta(ge=1, le=65535)] = 50051
    controller_port: Annotated[int, Meta(ge=1, le=65535)] = 50052
    device_id: Annotated[int, Meta(ge=0, le=2**63 - 1)] = 0
    trace: Annotated[int, Meta(ge=0)] = 0  # packets whose way through the program the switch writes to switch.log
    pcap: bool = False  # keep every frame of every link of the switch, in pcap/ below the pass
    tls: bool = True  # workers, peers, controller and commands prove who they are (docs/SECURITY.md)

    def check(self) -> None:
        """Ports that differ, a network that processes on this machine can have for themselves, what BMv2 cannot."""
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


class Job(Section, frozen=True):
    """What is aggregated: who takes part, in which packets, through which slots."""

    id: Annotated[int, Meta(ge=1, le=255)] = 1  # also its multicast group
    collective: CollectiveName = "switch"  # what sums the gradients (docs/ARCHITECTURE.md, Collectives)
    workers: Annotated[int, Meta(ge=1, le=WORKERS_MAX)] = 4
    words: Annotated[int, Meta(ge=1, le=WORDS_MAX)] = 4  # 256-byte words in a packet
    start_workers: PositiveInt | None = None  # the job starts once so many are attached; None: all
    slots: Annotated[int, Meta(ge=2, le=SLOTS)] = 1024  # of the switch's; a power of two
    window: PositiveInt = 64  # blocks in flight, at most slots / 2
    rto_ms: Positive = 50.0  # first retransmission timeout
    packets: Literal["fast", "scapy"] = "fast"  # what makes and reads them
    gradient_range: Annotated[float, Meta(gt=0, le=2**20)] = (
        64.0  # largest magnitude of one addend; more is clipped into the residual
    )


class Policy(Section, frozen=True):
    """How k is chosen."""

    objective: str = (
        DEFAULT  # a run's first pass, where run.passes does not say; a controller's that is started by hand
    )
    margin: NotNegative = 0.05  # change k only when the predicted gain is above this share
    window: PositiveInt = 16  # blocks that an estimate rests on
    decide_every: PositiveInt = 1  # iterations between decisions
    warm_up: PositiveInt = 1  # reports from every live worker before the first decision
    include_after: Annotated[int, Meta(ge=0)] = (
        0  # wait for a worker that was too late so many times in a row; 0: never
    )
    late_gradient: LateGradient = (
        "auto"  # what becomes of a gradient whose iteration ended without it (run/late.py); auto: the objective chooses
    )
    age_weight: Probability | None = None  # what each iteration of age leaves of its weight; None: as late_gradient
    age_limit: Annotated[int, Meta(ge=1)] = 64  # an older gradient is in no sum

    @property
    def treatment(self) -> Treatment:
        """Of late gradients, as long as nobody chooses another one."""
        rule = DEFAULT_RULE if self.late_gradient == "auto" else self.late_gradient
        return Treatment(rule, AGE_WEIGHT if self.age_weight is None else self.age_weight)


class Model(Section, frozen=True):
    """The multilayer perceptron on scikit-learn's digits."""

    hidden: tuple[Annotated[int, Meta(ge=1, le=65_536)], ...] = (64,)  # [960, 960]: a million parameters
    replay: str | None = None  # a folder of .npy files that are the gradients, from the TOML file on; None: train
    batch: Annotated[int, Meta(ge=1, le=65_536)] = 32  # images a worker an iteration
    learning_rate: Positive = 0.1
    momentum: Annotated[float, Meta(ge=0, lt=1)] = 0.9
    average: Average = "gradients"  # what a sum is divided by: how many of these are in it (docs/CONTROL.md)
    compute_ms: NotNegative = 10.0  # least time of one forward and backward pass: stands for a larger model
    dirichlet: Positive | None = (
        None  # how alike the workers' classes are, alpha: 0.1 hardly, 100 much; None: dealt evenly
    )


Law = Literal["poisson", "exponential", "pareto"]
"""Of blocking times: a Poisson number of events of run.event_ms, exponential, or Pareto (shape 2, from 0 on)."""


class Straggler(Section, frozen=True):
    """Blocking of some workers from an iteration on, until a later entry for the same worker."""

    workers: tuple[Annotated[int, Meta(ge=0)], ...]
    mean_ms: NotNegative  # mean blocking time an iteration; lambda of law = "poisson"
    law: Law = "poisson"
    compute_ms: NotNegative | None = None  # other hardware: in place of model.compute_ms
    from_iteration: PositiveInt = 1


class Shock(Section, frozen=True):
    """Times at which every gradient that some workers begin takes longer; several entries add up."""

    workers: tuple[Annotated[int, Meta(ge=0)], ...]
    blocking_ms: Positive  # so much longer
    for_ms: Positive  # length of such a time
    share: Probability  # of all times
    common: bool = True  # at the same time for all of these workers; false: for each at times of its own


class Shard(Section, frozen=True):
    """One worker that alone holds all training images of some classes, and no others."""

    worker: Annotated[int, Meta(ge=0)]
    classes: tuple[Annotated[int, Meta(ge=0, lt=CLASSES)], ...]

    def check(self, owners: dict[int, int]) -> None:
        """Enter its classes among those that have an owner already."""
        if not self.classes:
            raise ConfigError(f"shard.classes of worker {self.worker} is empty: one or more classes are needed")
        for label in self.classes:
            if label in owners:
                raise ConfigError(
                    f"shard.classes of worker {self.worker} has {label}, which worker {owners[label]} holds:"
                    " each class can be given once"
                )
            owners[label] = self.worker


class Fault(Section, frozen=True):
    """What the network does to some workers' packets, for as long as it is in force; several entries add up."""

    where: Literal["host", "switch"] = "host"  # the worker's transport, or its port of the embedded switch
    workers: tuple[Annotated[int, Meta(ge=0)], ...] | None = None  # None: all
    direction: Literal["send", "receive", "both"] = "both"  # as the worker sees it
    packets: tuple[PositiveInt, ...] | None = None  # only these, counted from 1 for each worker and direction
    drop: Probability = 0.0
    duplicate: Probability = 0.0
    corrupt: Probability = 0.0  # one bit flips, anywhere
    reorder: Probability = 0.0  # held back until the next one has passed, 20 ms at most
    delay_ms: NotNegative = 0.0  # of every packet
    jitter_ms: NotNegative = 0.0  # more delay, uniform from 0: reorders
    from_s: NotNegative = 0.0  # since the worker started; at the switch: since the first packet of the worker's port
    until_s: NotNegative = math.inf

    def check(self, target: str) -> None:
        """That something can happen, and that somebody makes it happen."""
        if self.until_s <= self.from_s:
            raise ConfigError(f"fault.until_s is {self.until_s}: more than fault.from_s = {self.from_s} is allowed")
        effects = ("drop", "duplicate", "corrupt", "reorder", "delay_ms", "jitter_ms")
        if not any(getattr(self, effect) for effect in effects):
            raise ConfigError(f"fault does nothing: one or more of {', '.join(effects)} above 0 are needed")
        for field in ("workers", "packets"):
            if getattr(self, field) == ():
                raise ConfigError(f"fault.{field} is empty: one or more numbers are allowed, or no {field} for all")
        if self.where == "switch" and target == "bmv2":
            raise ConfigError(
                "fault.where is 'switch', network.target is 'bmv2': BMv2's ports have no fault layer; "
                "where = 'host' is allowed"
            )


ACTIONS = ("kill", "start", "objective")

CONTROL_PLANE = ("switch", "controller")
"""The processes that all jobs share."""


class Event(Section, frozen=True):
    """Something that happens in mid-run: exactly one of kill, start and objective.

    A worker whose first event is a start is not started with the others: a late joiner (see job.start_workers).
    """

    at_iteration: PositiveInt  # once any worker has finished this iteration
    kill: str | None = None  # "switch", "controller" or "worker-R": SIGKILL
    start: str | None = None  # the same names: again, or late
    after_s: NotNegative = 0.0  # so much later
    objective: str | None = None  # what `kofn set-k` would set

    def actions(self) -> dict[str, str]:
        """What is given of the three."""
        return {name: value for name in ACTIONS if (value := getattr(self, name)) is not None}


class Link(Section, frozen=True):
    """Another rate of some workers' links, in both directions, until a later entry for the same worker."""

    workers: tuple[Annotated[int, Meta(ge=0)], ...]
    mbps: Mbps
    at_iteration: PositiveInt  # once any worker has finished this iteration
    after_s: NotNegative = 0.0  # so much later, in the middle of an iteration for instance

    def check(self) -> None:
        """That there is something to change."""
        if not self.workers:
            raise ConfigError("link.workers is empty: one or more numbers are allowed")


class Run(Section, frozen=True):
    """What is done: passes over the same seed and stragglers, one after another."""

    name: str = "default"
    seed: Annotated[int, Meta(ge=0)] = 1
    passes: tuple[str, ...] = ()  # objectives; the last one is the baseline.  None: policy.objective, then "all"; only
    # that where job.collective is not "switch"
    target_accuracy: Annotated[float, Meta(gt=0, le=1)] = 0.95
    accuracy_over: Annotated[int, Meta(ge=1, le=1000)] = 1  # evaluations that an accuracy is the mean of
    evaluate_every: PositiveInt = 1  # iterations; the accuracy of those between is not known
    max_iterations: PositiveInt = 1000
    event_ms: Positive = 5.0  # tau: duration of one injected blocking event
    shift_every: Annotated[int, Meta(ge=0)] = 0  # iterations after which every worker's blocking goes to the next rank
    record: bool = False  # keep every contribution and result of every worker, for checking (large)
    pass_deadline_s: Positive = 900.0  # a pass that takes longer is stopped with an error


class Config(Section, frozen=True):
    """One run, complete and checked."""

    run: Run = Run()
    network: Network = Network()
    job: Job = Job()
    compress: Compress = Compress()
    policy: Policy = Policy()
    model: Model = Model()
    straggler: tuple[Straggler, ...] = ()
    shock: tuple[Shock, ...] = ()
    shard: tuple[Shard, ...] = ()
    fault: tuple[Fault, ...] = ()
    link: tuple[Link, ...] = ()
    event: tuple[Event, ...] = ()

    def __post_init__(self) -> None:
        """Passes are always known: where the switch does not sum, nothing chooses k."""
        if not self.run.passes:
            chosen = (self.policy.objective,) if self.job.collective == "switch" else ()
            force_setattr(self, "run", replace(self.run, passes=tuple(dict.fromkeys((*chosen, "all")))))

    @property
    def owned(self) -> list[int]:
        """The classes that only one worker holds."""
        return [label for shard in self.shard for label in shard.classes]

    @property
    def pace_mbps(self) -> float:
        """At which rate a worker's packets leave, in Mbit/s; 0: as they come.

        The workers of a parameter server share its link (source: the rate-adaptive compression document, B / n).
        The links of a topology of your own are known to that alone, so without compress.pace_mbps nothing is paced.
        """
        if self.compress.pace_mbps is not None:
            return self.compress.pace_mbps
        sharing = self.job.workers if self.job.collective == "server" else 1
        return (self.network.link_mbps or 0.0) / sharing if self.network.topology is None else 0.0

    @classmethod
    def load(cls, path: Path, settings: Sequence[str] = ()) -> Self:
        """Read and check a TOML file, a command line's `settings` in it; ConfigError names the field that is wrong."""
        try:
            document = tomllib.loads(path.read_text())
        except OSError as error:
            raise ConfigError(f"{path}: {error.strerror}") from error
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise ConfigError(f"{path}: not TOML: {error}") from error
        try:
            return cls.of(document, settings)._at(path.parent)
        except ConfigError as error:
            raise ConfigError(f"{path}: {error}") from error

    @classmethod
    def of(cls, document: dict[str, Any], settings: Sequence[str] = ()) -> Self:
        """What a TOML file says, checked, with `settings` as above; ConfigError names the field that is wrong."""
        override(document, settings)
        check_document(document, cls)
        try:
            config = msgspec.convert(document, cls, dec_hook=lambda kind, value: kind(value))
        except msgspec.ValidationError as error:
            raise ConfigError(str(error)) from error
        config.check()
        return config

    def _at(self, folder: Path) -> Self:
        """With the paths in it that every process needs, from this folder on."""
        if self.model.replay is None:
            return self
        replay = str((folder / self.model.replay).resolve())
        return replace(self, model=replace(self.model, replay=replay))

    def check(self) -> None:
        """Bounds that types cannot say, or that span fields."""
        if not NAME.fullmatch(self.run.name):
            raise ConfigError(f"run.name is {self.run.name!r}: up to 64 letters, digits, '.', '_' and '-' are allowed")
        self.network.check()
        if self.job.slots & (self.job.slots - 1):
            raise ConfigError(f"job.slots is {self.job.slots}: a power of two from 2 to 4096 is allowed")
        if self.job.window > self.job.slots // 2:
            raise ConfigError(f"job.window is {self.job.window}: 1 to {self.job.slots // 2} (job.slots / 2) is allowed")
        self.compress.check(workers=self.job.workers, words=self.job.words)
        check_objective(self.policy.objective, self.job.workers, "policy.objective")
        for objective in self.run.passes:
            check_objective(objective, self.job.workers, "run.passes")
        if (self.job.start_workers or 1) > self.job.workers:
            raise ConfigError(
                f"job.start_workers is {self.job.start_workers}: 1 to {self.job.workers} (job.workers) is allowed"
            )
        for event in self.event:
            self._check_event(event)
        for entry in self.straggler:
            self._check_ranks(entry.workers, "straggler.workers")
        for shock in self.shock:
            self._check_ranks(shock.workers, "shock.workers")
        self._check_shards()
        for fault in self.fault:
            self._check_ranks(fault.workers or (), "fault.workers")
            fault.check(self.network.target)
        for link in self.link:
            self._check_ranks(link.workers, "link.workers")
            link.check()

    def _check_event(self, event: Event) -> None:
        """One action, on something that is there."""
        given = event.actions()
        if len(given) != 1:
            raise ConfigError(
                f"event has {', '.join(given) or 'no action'}: exactly one of {', '.join(ACTIONS)} is allowed"
            )
        if event.objective is not None:
            check_objective(event.objective, self.job.workers, "event.objective")
            return
        action, name = given.popitem()
        processes = [*CONTROL_PLANE, *(f"worker-{rank}" for rank in range(self.job.workers))]
        if name not in processes:
            raise ConfigError(f"event.{action} is {name!r}: {', '.join(processes)} are allowed")

    def _check_shards(self) -> None:
        """One shard a worker, one owner a class; and the other workers have the other classes."""
        if self.shard and self.model.replay is not None:
            raise ConfigError(
                "shard is given, and model.replay: one of them is allowed, no image is looked at in a replay"
            )
        if self.shard and self.model.dirichlet is not None:
            raise ConfigError("shard is given, and model.dirichlet: one of them is allowed, each deals the images out")
        owners: dict[int, int] = {}
        sharing = set(range(self.job.workers))
        for shard in self.shard:
            self._check_ranks((shard.worker,), "shard.worker")
            if shard.worker not in sharing:
                raise ConfigError(f"shard.worker {shard.worker} is there twice: one shard a worker is allowed")
            sharing.remove(shard.worker)
            shard.check(owners)
        left = [label for label in range(CLASSES) if label not in owners]
        if left and not sharing:
            raise ConfigError(f"shard leaves no worker for the classes {left}: give them to one, or leave one without")
        if sharing and not left:
            raise ConfigError(f"shard leaves no class for the workers {sorted(sharing)}: leave one, or give them some")

    def _check_ranks(self, ranks: tuple[int, ...], field: str) -> None:
        """Every rank is a worker's."""
        for rank in ranks:
            if rank >= self.job.workers:
                raise ConfigError(f"{field} has {rank}: 0 to {self.job.workers - 1} (job.workers - 1) is allowed")
