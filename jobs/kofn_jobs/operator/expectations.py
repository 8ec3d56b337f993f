"""Actions of this operator whose effect its watches do not show yet. The operator remembers them, so that it does not
repeat them."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from kofn_jobs.kinds import attempt_of
from kofn_jobs.lifecycle import Action, Become, Made, Make, Observed, Remove, Start
from kofn_jobs.request import TrainingRequest

KEPT_S = 60.0
"""An effect that stays invisible for this time has failed, or was undone at once."""


@dataclass
class _Done:
    """The actions for one request, each with the time until which its effect is expected."""

    made: dict[Made, float] = field(default_factory=dict)
    gone: dict[Made, float] = field(default_factory=dict)
    started: dict[str, float] = field(default_factory=dict)
    replaced: str = ""
    """The request's version before its latest status was stored."""


class Expectations:
    """The expectations of all requests, by uid."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._done: dict[str, _Done] = {}

    def note(self, request: TrainingRequest, action: Action) -> None:
        """Note an action that was carried out."""
        done = self._done.setdefault(request.metadata.uid, _Done())
        until = self._clock() + KEPT_S
        match action:
            case Make(role, attempt):
                done.made[role, attempt_of(role, attempt)] = until
            case Remove(role, attempt):
                done.made.pop((role, attempt), None)
                done.gone[role, attempt] = until
            case Start(pods):
                done.started |= dict.fromkeys(pods, until)
            case Become():
                done.replaced = request.metadata.resource_version

    def outdated(self, request: TrainingRequest) -> bool:
        """Return whether the request still has a status that this operator has replaced: the watch has not brought the
        new status yet."""
        done = self._done.get(request.metadata.uid)
        return done is not None and done.replaced == request.metadata.resource_version != ""

    def applied(self, request: TrainingRequest, seen: Observed) -> Observed:
        """Return the observed state as it will be once the watches have caught up."""
        done = self._done.get(request.metadata.uid)
        if done is None:
            return seen
        now = self._clock()
        done.made = {made: until for made, until in done.made.items() if until > now and made not in seen.made}
        done.gone = {made: until for made, until in done.gone.items() if until > now and made in seen.made}
        done.started = {pod: until for pod, until in done.started.items() if until > now and pod in seen.gated}
        return replace(
            seen, made=(seen.made | done.made.keys()) - done.gone.keys(), gated=seen.gated - done.started.keys()
        )

    def forget(self, uid: str) -> None:
        self._done.pop(uid, None)
