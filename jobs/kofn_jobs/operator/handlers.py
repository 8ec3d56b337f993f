"""kopf's handlers: indices of objects, one daemon for each request, and the admission webhook.

A daemon takes a decision whenever an object of its request changes, and also at intervals.
"""

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, TypeAlias

import httpx2
import kopf
import msgspec

from kofn_common.json_text import json_text
from kofn_jobs.errors import RequestError
from kofn_jobs.kinds import KINDS, OF_ATTEMPT
from kofn_jobs.lifecycle import Action, Become, Observed, left_s, pause_s, step
from kofn_jobs.manifests import CONTROL, REQUEST_LABEL, UID_LABEL, configuration
from kofn_jobs.operator.carry_out import Hands
from kofn_jobs.operator.expectations import Expectations
from kofn_jobs.operator.metrics import OperatorMetrics
from kofn_jobs.operator.observe import (
    SeenNode,
    SeenObject,
    SeenPod,
    SeenRefusal,
    observed,
    seen_node,
    seen_object,
    seen_pod,
)
from kofn_jobs.operator.permissions import Permissions
from kofn_jobs.operator.progress import Followed
from kofn_jobs.phases import TROUBLED
from kofn_jobs.request import GROUP, PLURAL, REQUESTER, REQUESTER_EXTRA, REQUESTER_GROUPS, VERSION, TrainingRequest

_LOG = logging.getLogger(__name__)

AGAIN_S = 1.0
LOOK_S = 30.0
BEHIND_S = 0.25
"""The wait until the daemon's document has a change. A handler may hear of the change earlier."""
SETTLE_S = 0.1
"""The wait before a decision, in seconds: changes come many at a time, and include the daemon's own."""

OURS = {REQUEST_LABEL: kopf.PRESENT, UID_LABEL: kopf.PRESENT}
SIMPLE = ("configmaps", "secrets", "services")


Key: TypeAlias = tuple[str | None, str]
"""Namespace and name of a request."""


class Handlers:
    """The handlers of one operator; `client` is lightkube's."""

    def __init__(self, client: Any) -> None:
        self.permissions = Permissions(client)
        self.hands = Hands(client, self.permissions)
        self.metrics = OperatorMetrics()
        self._followed = Followed(client)
        self._expected = Expectations()
        self._changed: dict[Key, asyncio.Event] = {}

    def register(self, registry: kopf.OperatorRegistry, *, webhook: bool) -> None:
        """Register all handlers; with `webhook`, note the creators of requests, and refuse wrong requests."""
        kopf.index("nodes", id="nodes", registry=registry)(_node)
        kopf.index("apiextensions.k8s.io", "v1", "customresourcedefinitions", id="installed", registry=registry)(_kind)
        kopf.index("v1", "events", id="refusals", when=_refuses, registry=registry)(_refusal)
        kopf.index("v1", "pods", id="pods", labels=OURS, registry=registry)(_pod)
        kopf.on.event("v1", "pods", id="pod-changed", labels=OURS, registry=registry)(self._tell)
        watched = [("v1", plural) for plural in SIMPLE] + [(kind.api_version, kind.plural) for kind in KINDS.values()]
        for version, plural in watched:
            kopf.index(*_selected(version, plural), id="objects", labels=OURS, registry=registry)(_object)
            kopf.on.event(*_selected(version, plural), id=plural, labels=OURS, registry=registry)(self._tell)
        kopf.on.event(GROUP, VERSION, PLURAL, id="request-changed", registry=registry)(self._tell_daemon)
        kopf.daemon(GROUP, VERSION, PLURAL, id="follow", cancellation_timeout=5.0, registry=registry)(self._follow)
        kopf.on.delete(GROUP, VERSION, PLURAL, id="remove", registry=registry)(self._remove)
        if webhook:
            kopf.on.mutate(GROUP, VERSION, PLURAL, id="requester", registry=registry)(note_requester)
            kopf.on.validate(GROUP, VERSION, PLURAL, id="request", registry=registry)(check_request)

    async def _tell(self, namespace: str | None, labels: Mapping[str, str], **_: Any) -> None:
        await self._tell_daemon(namespace, labels[REQUEST_LABEL])

    async def _tell_daemon(self, namespace: str | None, name: str, **_: Any) -> None:
        if changed := self._changed.get((namespace, name)):
            changed.set()

    async def _follow(self, body: kopf.Body, stopped: kopf.DaemonStopped, **indices: Any) -> None:
        """Follow one request until it is deleted."""
        key = (body.metadata.namespace, body.metadata.name)
        changed = self._changed.setdefault(key, asyncio.Event())
        while not stopped:
            changed.clear()
            pause_s = await self._decide(body, indices)
            if not stopped and pause_s:
                await _first(changed.wait(), stopped.wait(pause_s))
                await stopped.wait(SETTLE_S)
        self._changed.pop(key, None)

    async def _decide(self, body: kopf.Body, indices: Mapping[str, Any]) -> float:
        """Carry out the next actions, and return the seconds to wait for a change."""
        try:
            request = TrainingRequest.read(dict(body))
            if self._expected.outdated(request):
                return BEHIND_S
            before = self._observed(request, indices)
            actions = step(request, await self._with_progress(request, before, indices))
            for action in actions:
                if await self.hands.carry_out(request, action):
                    self._expected.note(request, action)
                    self._post(body, request, action)
                elif self.hands.refusal(request):
                    break
        except RequestError as error:
            _LOG.error("%s: %s", body.metadata.name, error)
            return LOOK_S
        except httpx2.HTTPError as error:
            _LOG.warning("%s: %s", body.metadata.name, error)
            return AGAIN_S
        known = self._observed(request, indices)  # a permission, a foreign object or a refusal makes no event
        if (known.permission, known.foreign, known.refused) != (before.permission, before.foreign, before.refused):
            return 0.0
        at_deadline_s = max(BEHIND_S, left_s(request, known.now))
        return min(LOOK_S, pause_s(request.status, known.now) or LOOK_S, at_deadline_s)

    async def _with_progress(self, request: TrainingRequest, seen: Observed, indices: Mapping[str, Any]) -> Observed:
        """Add the progress that the controller of a running request reports."""
        pods = indices["pods"].get(request.metadata.uid, ())
        here = [pod for pod in pods if pod.role == CONTROL and pod.address]
        if request.status.phase != "Running" or not here:
            return seen
        found = await self._followed.ask(request, here[0].address)
        if found is None:
            return seen
        return replace(seen, k=found.k, iteration=found.iteration, late_workers=found.late_workers, metric=found.metric)

    def _observed(self, request: TrainingRequest, indices: Mapping[str, Any]) -> Observed:
        uid = request.metadata.uid
        seen = observed(
            request,
            pods=indices["pods"].get(uid, ()),
            objects=indices["objects"].get(uid, ()),
            nodes=indices["nodes"].get(None, ()),
            installed=indices["installed"].get(None, ()),
            refusals=indices["refusals"].get(None, ()),
            permission=self.permissions.known(request),
            foreign=self.hands.foreign.get(uid, ""),
            refused=self.hands.refusal(request),
        )
        return self._expected.applied(request, seen)

    def _post(self, body: kopf.Body, request: TrainingRequest, action: Action) -> None:
        """Post an event for each new phase, and for each new message within a phase, which reports trouble."""
        self.metrics.actions.labels(type(action).__name__).inc()
        if not isinstance(action, Become):
            return
        before, now = request.status, action.status
        if (now.phase, now.message) == (before.phase, before.message):
            return
        if now.phase != before.phase:
            self.metrics.phases.labels(now.phase).inc()
        trouble = now.phase == before.phase or now.phase in TROUBLED
        (kopf.warn if trouble else kopf.info)(body, reason=now.phase, message=now.message)

    async def _remove(self, body: kopf.Body, **indices: Any) -> None:
        """End the pods before the request is deleted; Kubernetes deletes all objects that the request owns."""
        request = TrainingRequest.read(dict(body))
        for role, attempt in self._observed(request, indices).made:
            if role in OF_ATTEMPT:
                await self.hands.remove(request, role, attempt)
        self.hands.foreign.pop(request.metadata.uid, None)
        self.hands.refused.pop(request.metadata.uid, None)
        self._followed.forget(request.metadata.uid)
        self._expected.forget(request.metadata.uid)


def note_requester(userinfo: Mapping[str, Any], meta: Mapping[str, Any], patch: kopf.Patch, **known: Any) -> None:
    """Note the creator of a request as its requester, permanently, whatever the object says."""
    if known["operation"] == "CREATE":
        patch.metadata.annotations[REQUESTER] = userinfo["username"]
        patch.metadata.annotations[REQUESTER_GROUPS] = ",".join(userinfo.get("groups", ()))
        patch.metadata.annotations[REQUESTER_EXTRA] = json_text(dict(sorted((userinfo.get("extra") or {}).items())))
        return
    before = known["old"].get("metadata", {}).get("annotations", {})
    for key in (REQUESTER, REQUESTER_GROUPS, REQUESTER_EXTRA):
        if meta.get("annotations", {}).get(key) != before.get(key):
            patch.metadata.annotations[key] = before.get(key)


def check_request(body: kopf.Body, **known: Any) -> None:
    """Check rules that the schema lacks, above all that the configuration is valid."""
    if known["operation"] != "CREATE":
        return
    try:
        configuration(TrainingRequest.read(msgspec.to_builtins(dict(body))))
    except RequestError as error:
        raise kopf.AdmissionError(str(error), code=422) from error


def _node(name: str, spec: kopf.Spec, status: kopf.Status, labels: kopf.Labels, **_: Any) -> dict[None, SeenNode]:
    return {None: seen_node(name, spec, status, labels)}


def _kind(spec: kopf.Spec, **_: Any) -> dict[None, str]:
    """Return a kind of workload, if the cluster has this kind in the version that kofn uses."""
    kind = spec["names"]["kind"]
    versions = {f"{spec['group']}/{version['name']}" for version in spec["versions"] if version["served"]}
    return {None: kind} if kind in KINDS and KINDS[kind].api_version in versions else {}


def _refuses(body: kopf.Body, **_: Any) -> bool:
    """Return whether an event says that a Job's pods cannot be made."""
    return body.get("reason") == "FailedCreate" and body.get("involvedObject", {}).get("kind") == "Job"


def _refusal(body: kopf.Body, **_: Any) -> dict[None, SeenRefusal]:
    of = body["involvedObject"]
    return {None: SeenRefusal(of.get("namespace", ""), of["name"], body.get("message", ""))}


def _pod(name: str, labels: kopf.Labels, spec: kopf.Spec, status: kopf.Status, **_: Any) -> dict[str, SeenPod]:
    """Return a pod, by its request's uid."""
    return {labels[UID_LABEL]: seen_pod(name, labels, spec, status)}


def _object(labels: kopf.Labels, status: kopf.Status, resource: kopf.Resource, **_: Any) -> dict[str, SeenObject]:
    return {labels[UID_LABEL]: seen_object(resource.kind or "", labels, status)}


def _selected(api_version: str, plural: str) -> tuple[str, ...]:
    """Return the group, version and plural as kopf wants them."""
    return (*api_version.rpartition("/")[::2], plural) if "/" in api_version else (api_version, plural)


async def _first(*waits: Any) -> None:
    """Wait until the first of these waits is over."""
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
