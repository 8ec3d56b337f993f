"""The scenarios of `kofn chaos`: for each kind of fault, the configurations of the jobs.

Every scenario trains the same model to the same accuracy as the first scenario, which has no fault.
"""

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

from msgspec.structs import replace

from kofn.experiments.chaos.crash import Crash, CrashKind
from kofn_common.config.compress import CompressSection
from kofn_common.config.faults import FaultSection
from kofn_common.config.interventions import EventSection, LinkSection
from kofn_common.config.job import JobSection
from kofn_common.config.k_bounds import bound_k
from kofn_common.config.model import ModelSection
from kofn_common.config.network import NetworkSection
from kofn_common.config.objectives import check_objective
from kofn_common.config.policy import PolicySection
from kofn_common.config.run import RunSection
from kofn_common.config.schedule import ScheduleSection
from kofn_common.config.schema import Config
from kofn_common.config.stragglers import StragglerSection

BASE = Config(
    run=RunSection(name="chaos", trials=("throughput",), trial_deadline_s=120.0),
    network=NetworkSection(link_mbps=200.0),
    model=ModelSection(learning_rate=0.005, compute_ms=10.0),  # about 380 iterations to the target
)
"""The base of all scenarios: four workers, none of them slow."""

LONG = replace(BASE, model=replace(BASE.model, learning_rate=0.0025))
"""About 750 iterations: enough for a long fault and the recovery from it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultScenario:
    """A fault, as a configuration for each job of the run."""

    name: str
    story: str
    jobs: tuple[Config, ...]
    embedded_only: str = ""
    """The reason why BMv2 cannot run the scenario; empty if it can."""
    crash: Crash | None = None
    """The death of all processes at once, if that is the fault."""

    def under(self, objective: str) -> Self:
        """Return the scenario with this objective in place of the objective of BASE. Raise ConfigError for an invalid
        objective."""
        check_objective(objective, BASE.job.workers, "--objective")
        jobs = [
            replace(config, run=replace(config.run, trials=(_bounded(objective, config.job.workers),)))
            if config.run.trials == BASE.run.trials
            else config
            for config in self.jobs
        ]
        return dataclasses.replace(self, jobs=tuple(jobs))

    def in_tree(self, racks: int) -> Self:
        """Return the scenario with the workers in racks; events at the switch become events at the root."""
        jobs = [
            replace(config, job=replace(config.job, racks=racks), event=tuple(map(_at_root, config.event)))
            for config in self.jobs
        ]
        hit = any("switch" in event.actions().values() for config in self.jobs for event in config.event)
        name, story = (text.replace("switch", "root") if hit else text for text in (self.name, self.story))
        return dataclasses.replace(self, name=name, story=story, jobs=tuple(jobs))


def _at_root(event: EventSection) -> EventSection:
    return replace(event, **{what: "root" for what, name in event.actions().items() if name == "switch"})


def _bounded(objective: str, workers: int) -> str:
    """Return RULE:K with k bounded by the number of workers."""
    name, _, k = objective.partition(":")
    return f"{name}:{bound_k(int(k), workers)}" if k.isdecimal() else objective


def scenarios(racks: int = 1) -> Iterator[FaultScenario]:
    """Yield all scenarios, the fault-free scenario first. With several racks, yield the scenarios with one job, and
    then the scenarios that only a tree has."""
    if racks == 1:
        yield from _at_one_switch()
        return
    yield from (scenario.in_tree(racks) for scenario in _at_one_switch() if len(scenario.jobs) == 1)
    yield from (scenario.in_tree(racks) for scenario in _of_racks())


def _of_racks() -> Iterator[FaultScenario]:
    """Yield faults of leaves and uplinks, and a rack with slow links."""
    for names in (("leaf-0",), ("leaf-0", "root")):
        events = [
            EventSection(at_iteration=60, after_s=after_s, **{action: name})
            for action, after_s in (("kill", 0.0), ("start", 0.5))
            for name in names
        ]
        killed = " and ".join(names)
        yield _events(f"{'-and-'.join(names)}-killed", f"{killed} killed at iteration 60, and restarted", *events)
    cut = FaultSection(where="uplink", racks=(0,), drop=1.0, from_s=2.0, until_s=7.0)
    yield _one("uplink-cut", "the uplink of rack 0 cut for 5 s", cut, base=LONG)
    lossy = FaultSection(where="uplink", drop=0.1)
    yield _one("uplink-loss-10", "10 % of all packets lost on the uplinks, each way", lossy)
    slow = LinkSection(workers=(2, 3), mbps=5.0, at_iteration=20)
    narrow = CompressSection(codec="auto", ratio_control="deliverable")
    base = replace(BASE, job=JobSection(words=8), compress=narrow, link=(slow,))
    yield _one("slow-rack", "the links of the last two workers at 5 Mbit/s: lanes become narrower", base=base)
    links = tuple(LinkSection(workers=(2, 3), mbps=mbps, at_iteration=at) for mbps, at in ((4.0, 6), (200.0, 14)))
    base = replace(
        base,
        run=replace(BASE.run, trials=("all",)),
        job=JobSection(words=8, window=8),
        model=replace(BASE.model, hidden=(300, 300)),
        link=links,
    )
    yield _one("rack-format", "k = n; one rack at 4 Mbit/s for some iterations sends in other lanes", base=base)


def _at_one_switch() -> Iterator[FaultScenario]:
    """Yield all scenarios of one switch."""
    yield _one("fault-free", "nothing happens")
    for share in (0.01, 0.1, 0.3):
        yield _one(
            f"loss-{share * 100:.0f}", f"{share * 100:.0f} % of all packets lost, each way", FaultSection(drop=share)
        )
    narrow = replace(BASE, compress=CompressSection(codec="int8"))
    yield _one("loss-10-int8", "10 % lost, gradients in 8-bit lanes", FaultSection(drop=0.1), base=narrow)
    yield _one("duplication", "20 % of all packets arrive twice", FaultSection(duplicate=0.2))
    yield _one(
        "reordering", "20 % of all packets overtaken, all up to 3 ms late", FaultSection(reorder=0.2, jitter_ms=3.0)
    )
    yield _one("corruption", "a bit flips in 5 % of all packets", FaultSection(corrupt=0.05))
    yield _one(
        "exchange",
        "in 1 % of all packets the two words of the iteration are exchanged, which no checksum shows",
        FaultSection(exchange=0.01),
    )
    yield _ports()
    yield from _partitions()
    yield from _crashes()
    yield _k_changes()
    yield _scheduled()
    yield from _memberships()
    yield _everything()
    yield from _deaths()


def _one(name: str, story: str, *rules: FaultSection, base: Config = BASE) -> FaultScenario:
    return FaultScenario(name=name, story=story, jobs=(replace(base, fault=rules),))


def _ports() -> FaultScenario:
    """Return faults of the network between host and switch."""
    rule = FaultSection(where="switch", drop=0.05, duplicate=0.05, corrupt=0.02, jitter_ms=2.0)
    return FaultScenario(
        name="switch-ports",
        story="5 % lost, 5 % duplicated, 2 % corrupted, 2 ms jitter at the switch's ports",
        jobs=(replace(BASE, fault=(rule,)),),
        embedded_only="BMv2's ports have no fault layer",
    )


def _partitions() -> Iterator[FaultScenario]:
    """Yield scenarios in which a worker neither sends nor receives for 5 s."""
    cut = FaultSection(workers=(2,), drop=1.0, from_s=2.0, until_s=7.0)
    yield _one("partition", "worker 2 cut off for 5 s; the others go on", cut, base=LONG)
    waiting = replace(BASE, run=replace(BASE.run, trials=("all",)))
    yield _one("partition-all", "worker 2 cut off for 5 s; k = n, so all wait", cut, base=waiting)


def _crashes() -> Iterator[FaultScenario]:
    """Yield scenarios in which processes are killed with kill -9. All but the last controller are restarted with the
    same command line."""
    for process in ("worker-1", "controller", "switch"):
        events = (
            EventSection(at_iteration=60, kill=process),
            EventSection(at_iteration=60, after_s=0.5, start=process),
        )
        yield _events(f"{process}-killed", f"{process} killed at iteration 60, restarted after 0.5 s", *events)
    both = [
        EventSection(at_iteration=60, kill="switch"),
        EventSection(at_iteration=60, kill="worker-1"),
        EventSection(at_iteration=60, after_s=0.3, start="worker-1"),
        EventSection(at_iteration=60, after_s=0.3, start="switch"),
    ]
    yield _events("switch-and-worker", "switch and worker-1 killed at once, restarted after 0.3 s", *both)
    gone = EventSection(at_iteration=60, kill="controller")
    yield _events("no-controller", "the controller killed at iteration 60, for good", gone)
    killed = [
        EventSection(at_iteration=at, after_s=after_s, **{action: f"worker-{rank}"})
        for rank, at in ((0, 40), (1, 60), (2, 80))
        for action, after_s in (("kill", 0.0), ("start", 0.3))
    ]
    yield _events("three-killed", "three of four workers killed, one after another, and restarted", *killed)


def _deaths() -> Iterator[FaultScenario]:
    """Yield scenarios in which all processes die at once, and the run is resumed at a checkpoint."""
    config = replace(LONG, run=replace(LONG.run, checkpoint_every=20))
    large = replace(config, model=replace(config.model, hidden=(1024,), learning_rate=0.0005))
    kinds: dict[CrashKind, tuple[str, Config]] = {
        "kill": ("all processes killed at iterations 70 and 150", config),
        "power-cut": ("the machine's power cut at iterations 70 and 150", config),
        "damage": ("all processes killed at iterations 70 and 150, and a bit of the newest checkpoint flipped", config),
        "disk-full": ("the disk full from iteration 70 on, all processes killed at iteration 150", large),
    }
    for kind, (story, base) in kinds.items():
        crash = Crash(kind=kind, at=(150,) if kind == "disk-full" else (70, 150))
        yield FaultScenario(name=f"all-{kind}", story=f"{story}; resumed", jobs=(base,), crash=crash)


def _events(name: str, story: str, *events: EventSection) -> FaultScenario:
    return FaultScenario(name=name, story=story, jobs=(replace(LONG, event=events),))


def _scheduled() -> FaultScenario:
    """Return a scenario in which layers' gradients travel one by one, while the controller searches the schedule."""
    config = replace(
        LONG,
        model=replace(LONG.model, hidden=(48, 32)),
        schedule=ScheduleSection(family="auto"),
        fault=(FaultSection(drop=0.05, reorder=0.1, jitter_ms=2.0),),
        event=(
            EventSection(at_iteration=60, kill="worker-1"),
            EventSection(at_iteration=60, after_s=0.5, start="worker-1"),
            EventSection(at_iteration=150, kill="switch"),
            EventSection(at_iteration=150, after_s=0.3, start="switch"),
        ),
    )
    story = "a schedule; 5 % lost, 10 % overtaken; worker-1, then the switch killed and restarted"
    return FaultScenario(name="schedule", story=story, jobs=(config,))


def _k_changes() -> FaultScenario:
    """Return a scenario that raises and lowers k, below and above the number of contributions in open slots."""
    ks = [(4, 1, 3, 2)[change % 4] for change in range(100)]
    events = tuple(EventSection(at_iteration=10 + 3 * change, objective=f"fixed:{k}") for change, k in enumerate(ks))
    return FaultScenario(name="k-changes", story="k raised and lowered 100 times", jobs=(replace(LONG, event=events),))


def _memberships() -> Iterator[FaultScenario]:
    """Yield scenarios in which the job's workers, or the switch's jobs, change."""
    late = replace(LONG, job=JobSection(start_workers=3), event=(EventSection(at_iteration=100, start="worker-3"),))
    yield FaultScenario(
        name="late-joiner", story="three workers begin, the fourth joins at iteration 100", jobs=(late,)
    )
    other = replace(
        BASE,
        job=JobSection(id=2, workers=3),
        fault=(FaultSection(drop=0.05),),
        event=(EventSection(at_iteration=30, objective="fixed:2"),),
    )
    yield FaultScenario(
        name="two-jobs", story="two jobs on one switch; the second one loses 5 %, its k is set to 2", jobs=(BASE, other)
    )
    slow = replace(
        BASE, policy=PolicySection(include_after=20), straggler=(StragglerSection(workers=(3,), mean_ms=60.0),)
    )
    yield FaultScenario(
        name="forced-inclusion", story="worker 3 is slow; waited for when late 20 times in a row", jobs=(slow,)
    )


def _everything() -> FaultScenario:
    config = replace(
        LONG,
        fault=(FaultSection(drop=0.05, duplicate=0.05, corrupt=0.01, reorder=0.05, jitter_ms=2.0),),
        straggler=(StragglerSection(workers=(3,), mean_ms=30.0),),
        event=(
            EventSection(at_iteration=40, kill="worker-0"),
            EventSection(at_iteration=40, after_s=0.5, start="worker-0"),
            EventSection(at_iteration=200, kill="controller"),
            EventSection(at_iteration=200, after_s=0.5, start="controller"),
            EventSection(at_iteration=350, kill="switch"),
            EventSection(at_iteration=350, after_s=0.5, start="switch"),
        ),
    )
    return FaultScenario(
        name="everything",
        story="5 % lost, 5 % duplicated, 1 % corrupted, a slow worker; worker, controller and switch killed in turn",
        jobs=(config,),
    )
