"""What is to be done next for a request: `step(request, observed)`, a function of what is stored and seen, and no I/O.

    Pending -> Preparing -> Starting -> Running -> Succeeded
       |          |            |           |
       |          '------------+-----------+--> Retrying -> Preparing, or Failed
       '--> Denied, Refused

It is called again after whatever happens, and after a restart: each action leaves a mark in the cluster, by which the
next call sees that it was done.  All actions may be done twice.
"""

import datetime
import math
from dataclasses import dataclass
from typing import TypeAlias

from msgspec.structs import replace

from kofn.jobs.conditions import TIME
from kofn.jobs.errors import JobsError
from kofn.jobs.kinds import OF_ATTEMPT, AttemptOutcome, Role, attempt_of, choose
from kofn.jobs.manifests import configuration
from kofn.jobs.request import ENDED, Phase, TrainingRequest, TrainingStatus
from kofn.jobs.split import Capacity, split

PAUSE_MOST_S = 300
EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)

Made: TypeAlias = tuple[Role, int]
"""An object that is there, and its attempt; 0: of all attempts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """What is seen of a request."""

    permission: bool | None = None
    """Of the requester; None: not asked yet."""
    capacities: tuple[Capacity, ...] = ()
    """Of the cluster's nodes, for a request that names none."""
    installed: frozenset[str] = frozenset()
    """The kinds of workloads that the cluster has."""
    made: frozenset[Made] = frozenset()
    foreign: str = ""
    """An object of somebody else's that has the name of one of ours."""
    refused: str = ""
    """An object of this attempt that the cluster has refused, and why."""
    trouble: str = ""
    """Why a pod of this attempt cannot be made or started."""
    control_ready: bool = False
    workers: frozenset[str] = frozenset()
    """The attempt's pods."""
    gated: frozenset[str] = frozenset()
    """Those of them that wait to be started."""
    ready: int = 0
    outcome: AttemptOutcome | None = None
    reason: str = ""
    """Of a failure."""
    k: int | None = None
    iteration: int | None = None
    late_workers: tuple[int, ...] = ()
    metric: float | None = None
    now: datetime.datetime = EPOCH


@dataclass(frozen=True, slots=True)
class Become:
    """Store this status; it is not stored where the request has changed since it was read."""

    status: TrainingStatus


@dataclass(frozen=True, slots=True)
class AskPermission:
    """Whether the requester may train."""


@dataclass(frozen=True, slots=True)
class Make:
    """An object; it may be there already."""

    role: Role
    attempt: int


@dataclass(frozen=True, slots=True)
class Remove:
    """An object; it may be gone already."""

    role: Role
    attempt: int


@dataclass(frozen=True, slots=True)
class Start:
    """Take the gates from these pods, all of the attempt's."""

    pods: frozenset[str]


Action: TypeAlias = Become | AskPermission | Make | Remove | Start


def step(request: TrainingRequest, observed: Observed) -> tuple[Action, ...]:
    """What to do now, in this order; nothing: wait for a change."""
    phase = request.status.phase
    if phase in ENDED:
        return _clean(request, observed)
    if phase == "Pending":
        return _admit(request, observed)
    if observed.outcome is not None and phase != "Retrying":
        return _conclude(request, observed)
    if not left_s(request, observed.now):
        limit = f"spec.activeDeadlineSeconds is {request.spec.active_deadline_seconds}"
        return _become(request, "Failed", f"{limit}, and {phase} was: {observed.trouble or request.status.message}")
    return {"Preparing": _prepare, "Starting": _start, "Running": _follow, "Retrying": _retry}[phase](request, observed)


def _become(request: TrainingRequest, phase: Phase, message: str, **changes: object) -> tuple[Become, ...]:
    """The same status in another phase; nothing where it is that already."""
    status = replace(request.status, phase=phase, message=message, **changes)
    return () if status == request.status else (Become(status),)


def _admit(request: TrainingRequest, observed: Observed) -> tuple[Action, ...]:
    requester = request.requester
    if observed.permission is None:
        return (AskPermission(),)
    if not observed.permission:
        return _become(request, "Denied", _denial(request), requester=requester)
    spec = request.spec
    try:
        request.check()
        configuration(request)
        parts = split(spec.accelerators, spec.capacities or observed.capacities, spec.least_per_node)
        workload = choose(spec, parts, observed.installed)
    except JobsError as error:
        return _become(request, "Refused", str(error), requester=requester)
    message = f"{spec.accelerators} = {' + '.join(str(part.accelerators) for part in parts)}"
    changes = {"attempt": 1, "parts": parts, "workload": workload, "requester": requester}
    return _become(request, "Preparing", message, **changes)


def _denial(request: TrainingRequest) -> str:
    if not request.requester:
        return "nobody is known to have asked for this: the admission webhook was not there when it was created"
    namespace = request.metadata.namespace
    return f"{request.requester} may not train in {namespace}: a role with the verb train of trainingrequests is needed"


def _prepare(request: TrainingRequest, observed: Observed) -> tuple[Action, ...]:
    if observed.foreign:
        return _become(
            request, "Refused", f"{observed.foreign} is there and belongs to somebody else: another job name"
        )
    attempt, wanted = request.status.attempt, request.spec.accelerators
    if observed.refused:
        return _again(request, observed, f"attempt {attempt}: {observed.refused}")
    if left := _remove(observed, keep=attempt):
        return left
    roles = [role for role in Role if (role, attempt_of(role, attempt)) not in observed.made]
    if roles:
        return tuple(Make(role, attempt_of(role, attempt)) for role in roles)
    if len(observed.workers) < wanted or not observed.control_ready:
        return _become(request, "Preparing", observed.trouble or request.status.message)
    return _become(request, "Starting", f"all {wanted} workers and their switch are there")


def _start(request: TrainingRequest, observed: Observed) -> tuple[Action, ...]:
    if lost := _lost(request, observed):
        return lost
    if observed.gated:
        return (Start(observed.gated),)
    ready = f"{observed.ready}/{request.spec.accelerators}"
    if observed.ready < request.spec.accelerators:
        return _become(request, "Starting", observed.trouble or "started", ready=ready)
    return _become(request, "Running", "all workers are ready", ready=ready)


def _follow(request: TrainingRequest, observed: Observed) -> tuple[Action, ...]:
    if lost := _lost(request, observed):
        return lost
    if observed.gated:  # a pod that took the place of a dead one
        return (Start(observed.gated),)
    return _become(request, "Running", "all workers were ready", **_progress(request, observed))


def _progress(request: TrainingRequest, observed: Observed) -> dict[str, object]:
    """What is known by now; an unknown k is no news."""
    found: dict[str, object] = {"ready": f"{observed.ready}/{request.spec.accelerators}"}
    if observed.k is not None:
        found |= {"k": observed.k, "iteration": observed.iteration, "late_workers": observed.late_workers}
    if observed.metric is not None:
        found["metric"] = round(observed.metric, 6)
    return found


def _lost(request: TrainingRequest, observed: Observed) -> tuple[Action, ...]:
    """Another attempt where somebody has deleted what this one needs."""
    attempt = request.status.attempt
    gone = [role for role in OF_ATTEMPT if (role, attempt) not in observed.made]
    return _again(request, observed, f"attempt {attempt}: its {gone[0].value} was deleted") if gone else ()


def _conclude(request: TrainingRequest, observed: Observed) -> tuple[Action, ...]:
    if observed.outcome is AttemptOutcome.SUCCEEDED:
        return _become(request, "Succeeded", "all workers have ended well", **_progress(request, observed))
    return _again(request, observed, f"attempt {request.status.attempt}: {observed.reason or 'a worker failed'}")


def _again(request: TrainingRequest, observed: Observed, reason: str) -> tuple[Action, ...]:
    """After a pause that grows: what failed at once may fail at once again."""
    limit, attempt = request.spec.backoff_limit, request.status.attempt
    if attempt > limit:
        return _become(request, "Failed", f"{reason}; spec.backoffLimit is {limit}")
    pause_s = min(request.spec.backoff_seconds * 2 ** (attempt - 1), PAUSE_MOST_S)
    at = (observed.now + datetime.timedelta(seconds=pause_s)).strftime(TIME)
    return _become(request, "Retrying", reason, next_attempt_time=at)


def pause_s(status: TrainingStatus, now: datetime.datetime) -> float:
    """Until the next attempt may begin, in seconds; 0: it may."""
    if status.phase != "Retrying" or not status.next_attempt_time:
        return 0.0
    return max(0.0, (_parsed(status.next_attempt_time) - now).total_seconds())


def left_s(request: TrainingRequest, now: datetime.datetime) -> float:
    """Return the seconds until spec.activeDeadlineSeconds have passed since the request was accepted; inf: for ever."""
    held = [each for each in request.status.conditions if each.type == "Accepted" and each.status == "True"]
    if request.spec.active_deadline_seconds is None or not held:
        return math.inf
    passed_s = (now - _parsed(held[0].last_transition_time)).total_seconds()
    return max(0.0, request.spec.active_deadline_seconds - passed_s)


def _parsed(time: str) -> datetime.datetime:
    return datetime.datetime.strptime(time, TIME).replace(tzinfo=datetime.UTC)


def _retry(request: TrainingRequest, observed: Observed) -> tuple[Action, ...]:
    """Everything of the attempt goes before the next one begins."""
    status = request.status
    if left := _remove(observed):
        return left
    if pause_s(status, observed.now):
        return ()
    following = replace(
        status,
        phase="Preparing",
        attempt=status.attempt + 1,
        next_attempt_time="",
        ready="",
        k=None,
        iteration=None,
    )
    return (Become(following),)


def _clean(request: TrainingRequest, observed: Observed) -> tuple[Action, ...]:
    """By the policy. The workload ends its other pods by itself, the switch runs until it is removed."""
    policy = "All" if request.status.phase == "Refused" else request.spec.clean_pod_policy
    roles = {"All": OF_ATTEMPT, "Running": (Role.CONTROL,), "None": ()}[policy]
    return tuple(Remove(role, attempt) for role, attempt in _of_attempts(observed) if role in roles)


def _remove(observed: Observed, keep: int = 0) -> tuple[Action, ...]:
    return tuple(Remove(role, attempt) for role, attempt in _of_attempts(observed) if attempt != keep)


def _of_attempts(observed: Observed) -> list[Made]:
    """What is there of any attempt."""
    return sorted((made for made in observed.made if made[0] in OF_ATTEMPT), key=lambda made: (made[1], made[0].value))
