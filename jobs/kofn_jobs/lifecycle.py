"""Decides the next actions for a request: `step(request, observed)`, a function of status and observations, without
I/O. phases.py draws the order of the phases.

`step` is called again after every change, and after a restart. Each action leaves a mark in the cluster. The next call
sees by this mark that the action is done. An action may be repeated.
"""

import datetime
import math
from dataclasses import dataclass
from typing import TypeAlias

from msgspec.structs import replace

from kofn_jobs.conditions import TIME
from kofn_jobs.errors import JobsError
from kofn_jobs.kinds import OF_ATTEMPT, AttemptOutcome, Role, attempt_of, choose
from kofn_jobs.manifests import configuration
from kofn_jobs.phases import ENDED, Phase
from kofn_jobs.request import TrainingRequest, TrainingStatus
from kofn_jobs.split import Capacity, split

PAUSE_MOST_S = 300
EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)

Made: TypeAlias = tuple[Role, int]
"""An existing object, and its attempt; 0 for an object that serves all attempts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """The observed state of a request."""

    permission: bool | None = None
    """The requester's permission; None: unknown."""
    capacities: tuple[Capacity, ...] = ()
    """The cluster's nodes, for a request that names no nodes."""
    installed: frozenset[str] = frozenset()
    """The kinds of workloads in the cluster."""
    made: frozenset[Made] = frozenset()
    foreign: str = ""
    """An object of another owner that has the name of an object of the request."""
    refused: str = ""
    """An object of this attempt that the cluster has refused, and the reason."""
    trouble: str = ""
    """The reason why a pod of this attempt cannot be made or started."""
    control_ready: bool = False
    workers: frozenset[str] = frozenset()
    """The names of the attempt's pods that are workers."""
    gated: frozenset[str] = frozenset()
    """The workers that wait for their start."""
    ready: int = 0
    outcome: AttemptOutcome | None = None
    reason: str = ""
    """The reason of a failure."""
    k: int | None = None
    iteration: int | None = None
    late_workers: tuple[int, ...] = ()
    metric: float | None = None
    now: datetime.datetime = EPOCH


@dataclass(frozen=True, slots=True)
class Become:
    """Store this status, unless the request has changed since it was read."""

    status: TrainingStatus


@dataclass(frozen=True, slots=True)
class AskPermission:
    """Ask whether the requester may train."""


@dataclass(frozen=True, slots=True)
class Make:
    """Make an object, which may exist already."""

    role: Role
    attempt: int


@dataclass(frozen=True, slots=True)
class Remove:
    """Remove an object, which may be gone already."""

    role: Role
    attempt: int


@dataclass(frozen=True, slots=True)
class Start:
    """Remove the scheduling gates of these pods, which are all pods of the attempt that have a gate."""

    pods: frozenset[str]


Action: TypeAlias = Become | AskPermission | Make | Remove | Start


def step(request: TrainingRequest, observed: Observed) -> tuple[Action, ...]:
    """Return the next actions, in order; none: wait for a change."""
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
    """Return the action that stores these changes of the status; no action if the status has these values already."""
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
        return "the requester is unknown: the admission webhook did not run when this request was created"
    namespace = request.metadata.namespace
    return f"{request.requester} may not train in {namespace}, got no role with the verb train of trainingrequests"


def _prepare(request: TrainingRequest, observed: Observed) -> tuple[Action, ...]:
    if observed.foreign:
        return _become(
            request, "Refused", f"{observed.foreign} exists and belongs to another owner: choose another job name"
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
    if observed.gated:  # a pod that replaces a dead pod
        return (Start(observed.gated),)
    return _become(request, "Running", "all workers were ready", **_progress(request, observed))


def _progress(request: TrainingRequest, observed: Observed) -> dict[str, object]:
    """Return the known progress. If k is unknown, the status keeps the last known k."""
    found: dict[str, object] = {"ready": f"{observed.ready}/{request.spec.accelerators}"}
    if observed.k is not None:
        found |= {"k": observed.k, "iteration": observed.iteration, "late_workers": observed.late_workers}
    if observed.metric is not None:
        found["metric"] = round(observed.metric, 6)
    return found


def _lost(request: TrainingRequest, observed: Observed) -> tuple[Action, ...]:
    """Return the action that begins another attempt, if an object of the present attempt was deleted."""
    attempt = request.status.attempt
    gone = [role for role in OF_ATTEMPT if (role, attempt) not in observed.made]
    return _again(request, observed, f"attempt {attempt}: its {gone[0].value} was deleted") if gone else ()


def _conclude(request: TrainingRequest, observed: Observed) -> tuple[Action, ...]:
    if observed.outcome is AttemptOutcome.SUCCEEDED:
        return _become(request, "Succeeded", "all workers have ended well", **_progress(request, observed))
    return _again(request, observed, f"attempt {request.status.attempt}: {observed.reason or 'a worker failed'}")


def _again(request: TrainingRequest, observed: Observed, reason: str) -> tuple[Action, ...]:
    """Retry after a growing pause, because another attempt may fail at once, too."""
    limit, attempt = request.spec.backoff_limit, request.status.attempt
    if attempt > limit:
        return _become(request, "Failed", f"{reason}; spec.backoffLimit is {limit}")
    pause_s = min(request.spec.backoff_seconds * 2 ** (attempt - 1), PAUSE_MOST_S)
    at = (observed.now + datetime.timedelta(seconds=pause_s)).strftime(TIME)
    return _become(request, "Retrying", reason, next_attempt_time=at)


def pause_s(status: TrainingStatus, now: datetime.datetime) -> float:
    """Return the seconds until the next attempt may begin; 0: now."""
    if status.phase != "Retrying" or not status.next_attempt_time:
        return 0.0
    return max(0.0, (_parsed(status.next_attempt_time) - now).total_seconds())


def left_s(request: TrainingRequest, now: datetime.datetime) -> float:
    """Return the seconds until spec.activeDeadlineSeconds have passed since the request was accepted; inf: the request
    has no limit, or has ended."""
    held = [
        condition
        for condition in request.status.conditions
        if condition.type == "Accepted" and condition.status == "True"
    ]
    if request.spec.active_deadline_seconds is None or not held or request.status.phase in ENDED:
        return math.inf
    passed_s = (now - _parsed(held[0].last_transition_time)).total_seconds()
    return max(0.0, request.spec.active_deadline_seconds - passed_s)


def _parsed(time: str) -> datetime.datetime:
    return datetime.datetime.strptime(time, TIME).replace(tzinfo=datetime.UTC)


def _retry(request: TrainingRequest, observed: Observed) -> tuple[Action, ...]:
    """Remove all objects of the attempt before the next attempt begins."""
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
    """Clean up by the policy. A workload that has ended ends its pods itself; the switch's pod runs until it is
    removed."""
    policy = "All" if request.status.phase == "Refused" else request.spec.clean_pod_policy
    running = OF_ATTEMPT if observed.outcome is None else (Role.CONTROL,)
    roles = {"All": OF_ATTEMPT, "Running": running, "None": ()}[policy]
    return tuple(Remove(role, attempt) for role, attempt in _of_attempts(observed) if role in roles)


def _remove(observed: Observed, keep: int = 0) -> tuple[Action, ...]:
    return tuple(Remove(role, attempt) for role, attempt in _of_attempts(observed) if attempt != keep)


def _of_attempts(observed: Observed) -> list[Made]:
    """Return the existing objects of any attempt."""
    return sorted((made for made in observed.made if made[0] in OF_ATTEMPT), key=lambda made: (made[1], made[0].value))
