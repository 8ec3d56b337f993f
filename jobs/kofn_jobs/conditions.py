"""Conditions from the phase, for `kubectl wait --for=condition=Complete`."""

import datetime

from msgspec.structs import replace

from kofn_jobs.phases import CONDITIONS
from kofn_jobs.request import StatusCondition, TrainingStatus

TIME = "%Y-%m-%dT%H:%M:%SZ"
"""The API's form of times, in UTC."""


def with_conditions(
    before: TrainingStatus, status: TrainingStatus, now: datetime.datetime | None = None
) -> TrainingStatus:
    """Return the status with its conditions; a condition has the time of its last change."""
    if status.phase == "Pending":
        return status
    at = (now or datetime.datetime.now(datetime.UTC)).strftime(TIME)
    old = {condition.type: condition for condition in before.conditions}
    return replace(status, conditions=tuple(_condition(name, status, old.get(name), at) for name in CONDITIONS))


def _condition(name: str, status: TrainingStatus, old: StatusCondition | None, at: str) -> StatusCondition:
    held = "True" if status.phase in CONDITIONS[name] else "False"
    since = old.last_transition_time if old is not None and old.status == held else at
    return StatusCondition(
        type=name,
        status=held,  # type: ignore[arg-type]
        reason=status.phase,
        message=status.message,
        last_transition_time=since,
    )
