"""The schedules of a trial, and an iteration's time with each."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self, cast

import pandas as pd

from kofn_host.schedule import PassSchedule


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleInForce:
    """A schedule of one trial and job. `iteration_s` is the median over its iterations of the slowest worker's time, in
    seconds, without blocking."""

    trial: str
    job: int
    schedule: PassSchedule
    first: int
    iterations: int
    iteration_s: float
    last: bool  # whether the schedule is in force at the trial's end

    @classmethod
    def of(cls, metrics: pd.DataFrame) -> list[Self]:
        """Return the schedules in a run's metrics, in the order in which they came into force."""
        computed = metrics[metrics["schedule"].notna()]
        by_job = computed.groupby(["trial", "job"], sort=False)
        return [schedule for key, rows in by_job for schedule in cls._of_job(cast(tuple[str, int], key), rows)]

    @classmethod
    def _of_job(cls, key: tuple[str, int], rows: pd.DataFrame) -> Sequence[Self]:
        trial, job = key
        took = (rows["iteration_s"] - rows["blocked_s"].fillna(0)).groupby(rows["iteration"]).max()
        names = rows.groupby("iteration")["schedule"].first()
        last = names.iloc[-1]
        return [
            cls(
                trial=trial,
                job=job,
                schedule=PassSchedule.parse(name),
                first=int(names.index[names == name][0]),
                iterations=int((names == name).sum()),
                iteration_s=float(took[names == name].median()),
                last=name == last,
            )
            for name in names.unique()
        ]
