"""The arms, tables and claims of `kofn experiment protocols`."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import pandas as pd

from kofn.experiments.arms import Arm, groups
from kofn.experiments.claims import Verdict
from kofn.experiments.protocols.contenders import ALONE, CLEAN, DEATH, LOSSES, SHARED, SITUATIONS, SLOTS, SLOW
from kofn.experiments.protocols.death import death_columns
from kofn.experiments.statistics import Spread
from kofn.experiments.tables import Columns, TextTable, count, milliseconds
from kofn.experiments.trials import FinishedTrial, Row
from kofn.report.iteration_costs import LinkMeans, reduce_s
from kofn_common.collectives.job_collective import load_collective
from kofn_controller.p4runtime.data_plane import load_data_plane

KOFN = "kofn"
"""The protocol that the other protocols are compared with."""

LEGEND = (
    "Medians over the seeds, in brackets their range; 32 bits a value. The workers of examples run in Python, kofn's in"
    " C, on links that limit both; ATP's parameter server has a separate host. all-reduce: time from arrays to arrays,"
    " without a run's first iteration. loss: share of packets lost in each direction; goodput: time on the clean link /"
    " time. slow worker: time of an iteration with a worker blocked for 200 ms, less the time without. link up, down:"
    " bytes of Ethernet frames of a worker in an iteration. memory: the job's slots in the switch's registers. job"
    " alone, beside another: two workers with 8 slots, then with a second such job (ATP's jobs share 8 slots). a worker"
    " dies: whether the other workers go on; the longest time between two iterations after the death (pause), or the"
    " time until the job ends, and its error."
)


def own_columns(trial: FinishedTrial) -> Row:
    """Return this experiment's columns."""
    situation, _, protocol = trial.cell.scenario.name.rpartition("-")
    config = trial.config
    collective = load_collective(config.job.collective)
    links = LinkMeans.of(trial.summary.link_bytes, config.job.workers, trial.summary.iterations)
    bits = load_data_plane(collective.data_plane)().slot_bits(config.job)
    return {
        "situation": situation,
        "protocol": protocol,
        "job_collective": config.job.collective,
        "reduce_s": reduce_s(trial.metrics()),
        **death_columns(trial),
        "memory_bytes": bits * config.job.slots // 8 if bits else None,
        **asdict(links),
    }


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ProtocolArms:
    """A protocol in every situation that was run, over the seeds."""

    name: str
    arms: Mapping[str, Arm]

    def spread(self, situation: str, column: str = "reduce_s") -> Spread | None:
        return self.arms[situation].spread(column) if situation in self.arms else None

    def known(self, column: str, situation: str = CLEAN) -> Spread | None:
        """Return a figure's spread in a situation; None if the figure is unknown."""
        return self.arms[situation].known_spread(column) if situation in self.arms else None

    @property
    def goes_on(self) -> bool | None:
        """Whether the other workers went on after a worker's death, with every seed; None without a death."""
        if DEATH not in self.arms:
            return None
        return not self.arms[DEATH].known("end_error")

    def goodput(self, situation: str) -> Spread | None:
        """Return an all-reduce's time on the clean link divided by its time in the situation, seed by seed."""
        if CLEAN not in self.arms or situation not in self.arms:
            return None
        pairs = self.arms[CLEAN].pairs(self.arms[situation], "reduce_s")
        return Spread.of([clean / other for clean, other in pairs]) if pairs else None

    def cost_of_slow(self) -> Spread | None:
        """Return the time that one slow worker adds to an iteration, seed by seed."""
        if CLEAN not in self.arms or SLOW not in self.arms:
            return None
        pairs = self.arms[SLOW].pairs(self.arms[CLEAN], "mean_iteration_s")
        return Spread.of([slow - clean for slow, clean in pairs]) if pairs else None

    def fact(self, column: str) -> Any:
        return next(iter(self.arms.values())).fact(column)

    def problems(self) -> Iterator[str]:
        for situation, arm in self.arms.items():
            yield from (f"{situation}, {self.name}: {why}" for why in arm.failures)
        if DEATH in self.arms and not (self.known("pause_s", DEATH) or self.known("end_after_s", DEATH)):
            yield f"{DEATH}, {self.name}: no worker was killed"


def protocol_arms(trials: pd.DataFrame) -> list[ProtocolArms]:
    """Return the protocols in the order of their runs."""
    found = []
    for rows in groups(trials, "protocol"):
        by_name = {trials["situation"].iloc[0]: Arm(trials=trials) for trials in groups(rows, "situation")}
        arms = {name: by_name[name] for name in SITUATIONS if name in by_name}
        found.append(ProtocolArms(name=rows["protocol"].iloc[0], arms=arms))
    return found


def _shown(spread: Spread | None, form: str, scale: float = 1.0, unit: str = "") -> str:
    if spread is None:
        return "-"
    middle, low, high = (form.format(scale * value) for value in (spread.median, spread.low, spread.high))
    return f"{middle} ({low} .. {high}){unit}"


def _bytes(protocol: ProtocolArms, column: str) -> str:
    spread = protocol.spread(CLEAN, column)
    return "-" if spread is None else f"{spread.median / 1e3:.0f} kB"


COSTS: Columns[ProtocolArms] = {
    "protocol": lambda protocol: protocol.name,
    "all-reduce": lambda protocol: _shown(protocol.spread(CLEAN), "{:.0f}", 1e3, " ms"),
    "slow worker": lambda protocol: _shown(protocol.cost_of_slow(), "{:+.0f}", 1e3, " ms"),
    "link up": lambda protocol: _bytes(protocol, "worker_up_bytes"),
    "link down": lambda protocol: _bytes(protocol, "worker_down_bytes"),
    "memory": lambda protocol: "-" if (size := protocol.fact("memory_bytes")) is None else f"{count(size / 1e3)} kB",
}

A_DEATH: Columns[ProtocolArms] = {
    "protocol": lambda protocol: protocol.name,
    "the others go on": lambda protocol: "yes" if protocol.goes_on else "NO",
    "pause": lambda protocol: _shown(protocol.known("pause_s", DEATH), "{:.2f}", unit=" s"),
    "the job ends after": lambda protocol: _shown(protocol.known("end_after_s", DEATH), "{:.2f}", unit=" s"),
    "error": lambda protocol: next(iter(protocol.arms[DEATH].known("end_error")), "-"),
}

GOODPUT: Columns[ProtocolArms] = {
    "protocol": lambda protocol: protocol.name,
    **{
        f"loss {loss:.2%}": lambda protocol, loss=loss: _shown(protocol.goodput(f"loss-{loss:g}"), "{:.2f}")  # type: ignore[misc]
        for loss in LOSSES
    },
}

FEW_SLOTS: Columns[ProtocolArms] = {
    "protocol": lambda protocol: protocol.name,
    **{
        f"{slots} slots": lambda protocol, slots=slots: _shown(protocol.spread(f"slots-{slots}"), "{:.0f}", 1e3, " ms")  # type: ignore[misc]
        for slots in SLOTS
    },
    "64 slots": COSTS["all-reduce"],
    "job alone": lambda protocol: _shown(protocol.spread(ALONE), "{:.0f}", 1e3, " ms"),
    "beside another": lambda protocol: _shown(protocol.spread(SHARED), "{:.0f}", 1e3, " ms"),
}


def tables(arms: Sequence[ProtocolArms]) -> Iterator[TextTable]:
    yield TextTable.of(COSTS, arms, title="Costs")
    yield TextTable.of(GOODPUT, arms, title="Goodput under loss, clean = 1")
    yield TextTable.of(FEW_SLOTS, arms, title="An all-reduce with few slots")
    if died := [protocol for protocol in arms if DEATH in protocol.arms]:
        yield TextTable.of(A_DEATH, died, title="A worker dies")


def verdicts(arms: Sequence[ProtocolArms]) -> Iterator[Verdict]:
    """Compare kofn's protocol with every other protocol, by medians. A NO means that the other protocol is faster, or
    needs fewer bytes."""
    kofn = next((protocol for protocol in arms if protocol.name == KOFN), None)
    for other in arms if kofn else ():
        assert kofn is not None
        if other.fact("job_collective") == kofn.fact("job_collective"):
            continue  # kofn's protocol with another k
        for situation in [name for name in SITUATIONS if name != DEATH]:
            mine, theirs = kofn.spread(situation), other.spread(situation)
            if mine and theirs:
                yield Verdict(
                    claim=f"{situation}: kofn's all-reduce is at least as fast as {other.name}'s",
                    holds=mine.median <= theirs.median,
                    numbers=f"{milliseconds(mine.median)} and {milliseconds(theirs.median)}",
                )
        for column, what in (("worker_up_bytes", "sends"), ("memory_bytes", "needs in the switch")):
            mine, theirs = kofn.known(column), other.known(column)
            if mine and theirs:
                yield Verdict(
                    claim=f"kofn {what} no more bytes than {other.name}",
                    holds=mine.median <= theirs.median,
                    numbers=f"{mine.median / 1e3:,.0f} kB and {theirs.median / 1e3:,.0f} kB",
                )


def document(protocol: ProtocolArms) -> dict[str, object]:
    """Return a protocol's figures, for JSON."""
    return {
        "protocol": protocol.name,
        "seeds": max((len(arm.seeds) for arm in protocol.arms.values()), default=0),
        "reduce_s": {situation: protocol.spread(situation) for situation in protocol.arms},
        "goodput": {situation: protocol.goodput(situation) for situation in protocol.arms if situation != CLEAN},
        "slow_worker_s": protocol.cost_of_slow(),
        "link_up_bytes": protocol.spread(CLEAN, "worker_up_bytes"),
        "link_down_bytes": protocol.spread(CLEAN, "worker_down_bytes"),
        "memory_bytes": protocol.fact("memory_bytes"),
        "goes_on_after_a_death": protocol.goes_on,
        "pause_s": protocol.known("pause_s", DEATH),
        "end_after_s": protocol.known("end_after_s", DEATH),
        "retransmissions": {
            situation: _or_none(protocol.spread(situation, "retransmissions")) for situation in protocol.arms
        },
    }


def _or_none(spread: Spread | None) -> Spread | None:
    return None if spread is None or math.isinf(spread.median) else spread
