"""What this operator has done and not yet seen: a watch tells it a moment later.  Without them it would do it twice."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from kofn.jobs.kinds import attempt_of
from kofn.jobs.lifecycle import Action, Become, Made, Make, Observed, Remove, Start
from kofn.jobs.request import TrainingRequest

KEPT_S = 60.0
"""What is not seen by then has come to nothing, or was undone at once by somebody else."""


@dataclass
class _Done:
    """For one request, each with the time until which it is believed."""

    made: dict[Made, float] = field(default_factory=dict)
    gone: dict[Made, float] = field(default_factory=dict)
    started: dict[str, float] = field(default_factory=dict)
    replaced: str = ""
    """The request's version before the status that was stored last."""


class Expectations:
    """Of all requests, by uid."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._done: dict[str, _Done] = {}

    def note(self, request: TrainingRequest, action: Action) -> None:
        """That it was carried out."""
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
        """It is the one whose status we have replaced; the new one is on its way."""
        done = self._done.get(request.metadata.uid)
        return done is not None and done.replaced == request.metadata.resource_version != ""

    def applied(self, request: TrainingRequest, seen: Observed) -> Observed:
        """What is seen, as it will be once the watches have caught up."""
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
