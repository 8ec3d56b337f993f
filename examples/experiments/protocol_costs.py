"""The cells, columns, tables and claims of protocols.toml that the file cannot state."""

from copy import deepcopy
from dataclasses import asdict, replace
from itertools import pairwise

import pandas as pd

from kofn.experiments.claims import Verdict
from kofn.experiments.tables import milliseconds, ratio_text
from kofn.report.interval import Interval
from kofn.report.iteration_costs import LinkMeans, reduce_s
from kofn.report.summarise import first_finishes
from kofn_common.collectives.job_collective import load_collective
from kofn_common.results.event_log import read_event_log
from kofn_common.results.logs import tail
from kofn_controller.p4runtime.data_plane import load_data_plane

CLEAN, SLOW, SHARED, DEATH = "clean", "slow", "shared", "death"


def cells(points):
    """Add the second job of `shared`. Let the job of `death` end, because that is a result."""
    return [_changed(point, point.axes["situation"]) for point in points]


def _changed(point, situation):
    other = deepcopy(point.document)
    other["job"]["id"] = 2
    return replace(point, others=(other,) if situation == SHARED else (), may_fail=situation == DEATH)


def columns(trial):
    config = trial.config
    bits = load_data_plane(load_collective(config.job.collective).data_plane)().slot_bits(config.job)
    after = _after_a_death(trial)
    missed = trial.cell.point.axes["situation"] == DEATH and not after
    return {
        "collective": config.job.collective,
        "reduce_s": reduce_s(trial.metrics()),
        "memory_bytes": bits * config.job.slots // 8 if bits else None,
        **asdict(LinkMeans.of(trial.summary.link_bytes, config.job.workers, trial.summary.iterations)),
        **after,
        "fault": "no worker was killed" if missed else None,
    }


def _after_a_death(trial):
    """Return the longest time between two iterations from a worker's death on. For a job that the death ended, return
    the time from the death to the end, and the error. Without a death there are no columns."""
    events = read_event_log(trial.folder.events)
    killed = [event.time for event in events if event.action == "kill" and not event.missed]
    if not killed:
        return {}
    if trial.summary.early_end:
        ended, error = _first_words(trial)
        return {"end_after_s": max(0.0, ended - killed[0]), "end_error": error}  # a kill is logged after it is done
    times = [line.time for line in first_finishes(trial.metrics())]
    return {"pause_s": max(later - earlier for earlier, later in pairwise(times) if later >= killed[0])}


def _first_words(trial):
    """Return the Unix time at which the first worker ended with an error, and the error. If no worker has written an
    error, return the Unix time and the reason of the run's end."""
    found = []
    for rank in range(trial.config.job.workers):
        log, prefix = trial.folder.log(f"worker-{rank}"), f"kofn worker {rank}: "
        words = tail(log, 1).strip()
        if words.startswith(prefix):
            found.append((log.stat().st_mtime, words.removeprefix(prefix)))
    return min(found, default=(trial.folder.status.stat().st_mtime, trial.summary.early_end.split(";")[0]))


def against_clean(experiment):
    """Return a row for each protocol: means over the seeds of what changes from the clean link to a situation."""
    frame = experiment.rows().set_index(["contender", "situation", "seed"])
    situations = list(dict.fromkeys(experiment.rows()["situation"]))
    rows = []
    for name in dict.fromkeys(experiment.rows()["contender"]):
        own = frame.loc[name]
        row = {"contender": name}
        for situation in [one for one in situations if one.startswith("loss-") and CLEAN in situations]:
            row[situation] = ratio_text(_mean(own.loc[CLEAN, "reduce_s"] / own.loc[situation, "reduce_s"]))
        if {CLEAN, SLOW} <= {*situations}:
            added = _mean(own.loc[SLOW, "mean_iteration_s"] - own.loc[CLEAN, "mean_iteration_s"])
            row["slow worker"] = "-" if added is None else added.text("{:+.0f} ms", 1e3)
        rows.append(row)
    return pd.DataFrame(rows)


def _mean(by_seed):
    return Interval.of(by_seed.dropna().tolist())


def after_a_death(experiment):
    """Return a row for each protocol: whether the other workers go on, with every seed, and when."""
    frame = experiment.rows({"situation": DEATH})
    rows = []
    for name, own in frame.groupby("contender", sort=False):
        columns = ("pause_s", "end_after_s", "end_error")
        pauses, ends, errors = (own[column].dropna().tolist() if column in own else [] for column in columns)
        pause, end = Interval.of(pauses), Interval.of(ends)
        rows.append(
            {
                "contender": name,
                "the others go on": "NO" if errors else "yes",
                "pause": "-" if pause is None else pause.text("{:.2f} s"),
                "the job ends after": "-" if end is None else end.text("{:.2f} s"),
                "error": next(iter(errors), "-"),
            }
        )
    return pd.DataFrame(rows)


def claims(experiment):
    """Compare kofn's protocol with every other protocol, by medians over the seeds. A NO means that the other protocol
    is faster, or needs fewer bytes."""
    frame, kofn = experiment.rows(), experiment.baseline
    known = frame[["reduce_s", "worker_up_bytes", "memory_bytes"]].astype("Float64")
    medians = known.groupby([frame["contender"], frame["situation"]]).median()
    collectives = dict(zip(frame["contender"], frame["collective"], strict=True))
    for other in collectives if kofn else ():
        if collectives[other] == collectives[kofn]:
            continue  # kofn's protocol with another k
        both = [one for one in dict.fromkeys(frame["situation"]) if {(kofn, one), (other, one)} <= {*medians.index}]
        for situation in [one for one in both if one != DEATH]:
            mine, theirs = (medians.loc[(name, situation), "reduce_s"] for name in (kofn, other))
            yield Verdict(
                claim=f"{situation}: kofn's all-reduce is at least as fast as {other}'s",
                holds=bool(mine <= theirs),
                numbers=f"{milliseconds(mine)} and {milliseconds(theirs)}",
            )
        for column, what in (("worker_up_bytes", "sends"), ("memory_bytes", "needs in the switch")):
            mine, theirs = (medians[column].get((name, CLEAN)) for name in (kofn, other))
            if pd.notna(mine) and pd.notna(theirs):
                yield Verdict(
                    claim=f"kofn {what} no more bytes than {other}",
                    holds=bool(mine <= theirs),
                    numbers=f"{mine / 1e3:,.0f} kB and {theirs / 1e3:,.0f} kB",
                )
