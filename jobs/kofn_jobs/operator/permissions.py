"""Permission to train: a SubjectAccessReview, whose answer is cached.

A request runs containers in its namespace with the operator's rights. So the requester needs the verb `train` of
trainingrequests in this namespace, in addition to the verb `create`.
"""

import asyncio
import json
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from lightkube.models.authorization_v1 import ResourceAttributes, SubjectAccessReviewSpec

from kofn_jobs.api import SubjectAccessReview
from kofn_jobs.request import GROUP, PLURAL, REQUESTER_EXTRA, REQUESTER_GROUPS, TrainingRequest

VERB = "train"
KEPT_S = 300.0
KEPT_MOST = 1024


class Permissions:
    """The cached answers. An answer is kept for KEPT_S seconds, and at most KEPT_MOST answers are kept, the latest
    used; `client` is lightkube's."""

    def __init__(self, client: Any, clock: Callable[[], float] = time.monotonic) -> None:
        self._client, self._clock = client, clock
        self._kept: OrderedDict[tuple[str, str, str, str], tuple[bool, float]] = OrderedDict()
        self._asking = asyncio.Lock()
        self.asked = 0

    def known(self, request: TrainingRequest) -> bool | None:
        """Return the cached answer, or None without a cached answer. An unknown requester may not train."""
        if not request.requester:
            return False
        key = _key(request)
        allowed, until = self._kept.get(key, (None, 0.0))
        if until < self._clock():
            return None
        self._kept.move_to_end(key)
        return allowed

    async def ask(self, request: TrainingRequest) -> None:
        """Ask the API server and cache the answer. If many requests of a requester arrive together, ask only once."""
        async with self._asking:
            if self.known(request) is None:
                await self._ask(request)

    async def _ask(self, request: TrainingRequest) -> None:
        user, groups, extra, namespace = key = _key(request)
        attributes = ResourceAttributes(group=GROUP, resource=PLURAL, verb=VERB, namespace=namespace)
        spec = SubjectAccessReviewSpec(
            user=user, groups=groups.split(","), extra=json.loads(extra or "{}"), resourceAttributes=attributes
        )
        answer = await self._client.create(SubjectAccessReview(spec=spec))
        self.asked += 1
        self._kept[key] = bool(answer.status.allowed), self._clock() + KEPT_S
        self._kept.move_to_end(key)
        while len(self._kept) > KEPT_MOST:
            self._kept.popitem(last=False)


def _key(request: TrainingRequest) -> tuple[str, str, str, str]:
    groups, extra = (request.metadata.annotations.get(key, "") for key in (REQUESTER_GROUPS, REQUESTER_EXTRA))
    return request.requester, groups, extra, request.metadata.namespace
