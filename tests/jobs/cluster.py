"""A cluster in a few fields: the effects of actions, and spontaneous events."""

import datetime
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from kofn_jobs.kinds import AttemptOutcome, Role
from kofn_jobs.lifecycle import (
    Action,
    AskPermission,
    Become,
    Made,
    Make,
    Observed,
    Remove,
    Start,
    step,
)
from kofn_jobs.request import REQUESTER, ObjectMeta, TrainingRequest, TrainingSpec, TrainingStatus
from kofn_jobs.split import Capacity

AT = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """The stored objects and the pods' states; `version` is the request's resource version."""

    spec: TrainingSpec
    status: TrainingStatus = field(default_factory=TrainingStatus)
    version: int = 0
    permitted: bool = True
    asked: bool = False
    capacities: tuple[Capacity, ...] = (Capacity("a", 10), Capacity("b", 10))
    made: frozenset[Made] = frozenset()
    pods: frozenset[tuple[int, str]] = frozenset()  # attempt, state: gated, waiting, ready
    control_ready: frozenset[int] = frozenset()
    outcomes: frozenset[tuple[int, AttemptOutcome]] = frozenset()
    failures: int = 0
    starts: frozenset[int] = field(default=frozenset())
    waited: frozenset[int] = frozenset()  # attempts after which the pause is over
    refused: frozenset[int] = frozenset()  # attempts with an object that the cluster has refused

    @property
    def request(self) -> TrainingRequest:
        meta = ObjectMeta(name="digits", annotations={REQUESTER: "ada"}, resource_version=str(self.version))
        return TrainingRequest(metadata=meta, spec=self.spec, status=self.status)

    def seen(self) -> Observed:
        attempt = self.status.attempt
        state = next((state for of, state in self.pods if of == attempt), "")
        names = frozenset(f"{attempt}-{i}" for i in range(self.spec.accelerators)) if state else frozenset()
        return Observed(
            permission=self.permitted if self.asked else None,
            capacities=self.capacities,
            installed=frozenset({"JobSet"}),
            made=self.made,
            refused="no quota" if attempt in self.refused else "",
            control_ready=attempt in self.control_ready,
            workers=names,
            gated=names if state == "gated" else frozenset(),
            ready=len(names) if state == "ready" else 0,
            outcome=next((outcome for of, outcome in self.outcomes if of == attempt), None),
            now=AT + datetime.timedelta(hours=attempt in self.waited),
        )

    def actions(self) -> tuple[Action, ...]:
        return step(self.request, self.seen())

    def done(self, action: Action, read_at: int) -> "Cluster":
        """Return the cluster after an action decided when the request had the version `read_at`."""
        match action:
            case AskPermission():
                return replace(self, asked=True)
            case Become(status):
                return self if read_at != self.version else replace(self, status=status, version=self.version + 1)
            case Make(role, attempt):
                return replace(self, made=self.made | {(role, attempt)})
            case Remove(role, attempt):
                return self._without(role, attempt)
            case Start(names):
                attempt = int(min(names).split("-")[0])
                pods = frozenset((of, "waiting") if of == attempt else (of, state) for of, state in self.pods)
                return replace(self, pods=pods, starts=self.starts | {attempt})

    def _without(self, role: Role, attempt: int) -> "Cluster":
        made = self.made - {(role, attempt)}
        if role is Role.CONTROL:
            return replace(self, made=made, control_ready=self.control_ready - {attempt})
        pods = frozenset(pod for pod in self.pods if pod[0] != attempt)
        outcomes = frozenset(each for each in self.outcomes if each[0] != attempt)
        return replace(self, made=made, pods=pods, outcomes=outcomes)

    def happenings(self, failures: int) -> Iterator["Cluster"]:
        """Yield the possible next steps of controllers, kubelets and the clock, with at most `failures` failures."""
        if self.status.phase == "Retrying" and self.status.attempt not in self.waited:
            yield replace(self, waited=self.waited | {self.status.attempt})
        attempt = self.status.attempt
        if self.status.phase == "Preparing" and attempt not in self.refused and self.failures < failures:
            yield replace(self, refused=self.refused | {attempt}, failures=self.failures + 1)
        for role, attempt in self.made:
            if role is Role.CONTROL and attempt not in self.control_ready:
                yield replace(self, control_ready=self.control_ready | {attempt})
            if role is Role.WORKLOAD:
                yield from self._workload(attempt, failures)

    def _workload(self, attempt: int, failures: int) -> Iterator["Cluster"]:
        state = next((state for of, state in self.pods if of == attempt), "")
        rest = frozenset(pod for pod in self.pods if pod[0] != attempt)
        ended = any(of == attempt for of, _ in self.outcomes)
        if not state:
            yield replace(self, pods=rest | {(attempt, "gated")})
        elif not ended and state == "waiting":
            yield replace(self, pods=rest | {(attempt, "ready")})
        elif not ended and state == "ready":
            yield replace(self, outcomes=self.outcomes | {(attempt, AttemptOutcome.SUCCEEDED)})
        if state and not ended and self.failures < failures:
            yield replace(self, outcomes=self.outcomes | {(attempt, AttemptOutcome.FAILED)}, failures=self.failures + 1)
