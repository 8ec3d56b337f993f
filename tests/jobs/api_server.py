"""An API server in this process: objects, versions, watches, patches, finalizers, owners, subject access reviews.

It refuses like a real one: existing names (409), patches of an older version (409), documents that violate the CRD
(422). The tests play its kubelet and its JobSet controller.
"""

import asyncio
import copy
import json
import math
import uuid
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import jsonpatch
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from tests.jobs.published import faults

Document = dict[str, Any]
Key = tuple[str, str, str, str]
"""Group, plural, namespace, name."""


class RefusedError(Exception):
    """A refusal with an API status."""

    def __init__(self, code: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.code, self.reason = code, reason


RESOURCES = {
    ("", "v1"): {
        "configmaps": ("ConfigMap", True),
        "secrets": ("Secret", True),
        "services": ("Service", True),
        "pods": ("Pod", True),
        "events": ("Event", True),
        "namespaces": ("Namespace", False),
        "nodes": ("Node", False),
    },
    ("kofn.dev", "v1alpha1"): {"trainingrequests": ("TrainingRequest", True)},
    ("apiextensions.k8s.io", "v1"): {"customresourcedefinitions": ("CustomResourceDefinition", False)},
    ("jobset.x-k8s.io", "v1alpha2"): {"jobsets": ("JobSet", True)},
    ("admissionregistration.k8s.io", "v1"): {
        "mutatingwebhookconfigurations": ("MutatingWebhookConfiguration", False),
        "validatingwebhookconfigurations": ("ValidatingWebhookConfiguration", False),
    },
    ("coordination.k8s.io", "v1"): {"leases": ("Lease", True)},
    ("authorization.k8s.io", "v1"): {"subjectaccessreviews": ("SubjectAccessReview", False)},
}


class ApiServer:
    """`app` is the server; the rest is for tests: the stored objects, users that may train, and counts of calls."""

    def __init__(self) -> None:
        self.objects: dict[Key, Document] = {}
        self.calls: Counter[str] = Counter()
        self.trainers = {"ada"}
        self.schemas: dict[str, Document] = {}
        self.writes_most = math.inf
        self._version = 1
        self._log: list[tuple[int, str, str, Document, bytes]] = []
        self._grown = asyncio.Condition()
        self.app = Starlette(
            routes=[
                Route("/version", self._server_version),
                Route("/api", self._versions),
                Route("/apis", self._groups),
                Route("/{path:path}", self._any, methods=["GET", "POST", "PUT", "PATCH", "DELETE"]),
            ]
        )

    # --- discovery

    async def _server_version(self, _: Request) -> Response:
        return JSONResponse({"major": "1", "minor": "30"})

    async def _versions(self, _: Request) -> Response:
        return JSONResponse({"kind": "APIVersions", "versions": ["v1"]})

    async def _groups(self, _: Request) -> Response:
        groups = [
            {
                "name": group,
                "versions": [{"groupVersion": f"{group}/{version}", "version": version}],
                "preferredVersion": {"groupVersion": f"{group}/{version}", "version": version},
            }
            for group, version in RESOURCES
            if group
        ]
        return JSONResponse({"kind": "APIGroupList", "groups": groups})

    def _resources(self, group: str, version: str) -> Response:
        listed = [
            {"name": name, "kind": kind, "namespaced": spaced, "singularName": kind.lower(), "verbs": VERBS}
            for plural, (kind, spaced) in RESOURCES[group, version].items()
            for name in (plural, f"{plural}/status")
        ]
        return JSONResponse({"kind": "APIResourceList", "groupVersion": f"{group}/{version}", "resources": listed})

    # --- requests

    async def _any(self, http: Request) -> Response:
        parts = http.path_params["path"].strip("/").split("/")
        group, version = ("", parts[1]) if parts[0] == "api" else (parts[1], parts[2])
        rest = parts[2:] if parts[0] == "api" else parts[3:]
        if (group, version) not in RESOURCES:
            return _status(404, "NotFound", "the server could not find the requested resource")
        if not rest:
            return self._resources(group, version)
        namespace = ""
        if rest[0] == "namespaces" and len(rest) > 2:
            namespace, rest = rest[1], rest[2:]
        plural, name, sub = (*rest, "", "")[:3]
        if plural not in RESOURCES[group, version]:
            return _status(404, "NotFound", "the server could not find the requested resource")
        try:
            if http.query_params.get("watch") in ("1", "true"):
                return StreamingResponse(self._watch(http, group, plural, namespace), media_type="application/json")
            if http.method != "GET" and plural != "events" and self.writes >= self.writes_most:
                raise RefusedError(503, "ServiceUnavailable", "who asks is as good as dead")
            self.calls[f"{http.method} {plural}{'/' + sub if sub else ''}"] += 1
            body = json.loads(await http.body() or b"null")
            return await self._answer(http, (group, plural, namespace, name), version, sub, body)
        except RefusedError as error:
            return _status(error.code, error.reason, str(error))

    async def _answer(self, http: Request, key: Key, version: str, sub: str, body: Any) -> Response:
        group, plural, namespace, name = key
        kind, _ = RESOURCES[group, version][plural]
        if kind == "SubjectAccessReview":
            allowed = body["spec"]["user"] in self.trainers and body["spec"]["resourceAttributes"]["verb"] == "train"
            return JSONResponse(body | {"status": {"allowed": allowed}}, status_code=201)
        if http.method == "POST":
            return JSONResponse(await self.create(group, version, plural, namespace, body), status_code=201)
        if http.method == "GET" and not name:
            return JSONResponse(self._list(http, key, kind, version))
        if key not in self.objects:
            raise RefusedError(404, "NotFound", f'{plural} "{name}" not found')
        return await self._of_one(http, key, sub, body)

    async def _of_one(self, http: Request, key: Key, sub: str, body: Any) -> Response:
        if sub == "log":
            return Response(f"log of {key[3]}\n", media_type="text/plain")
        if http.method == "PATCH":
            return JSONResponse(await self._patch(key, sub, body, http.headers["content-type"]))
        if http.method == "PUT":
            return JSONResponse(await self._replace(key, body))
        if http.method == "DELETE":
            await self.delete(key)
            return JSONResponse({"kind": "Status", "status": "Success"})
        return JSONResponse(self.objects[key])

    def _list(self, http: Request, key: Key, kind: str, version: str) -> Document:
        group, plural, namespace, _ = key
        items = [
            each
            for (of, what, where, _), each in sorted(self.objects.items())
            if (of, what) == (group, plural) and namespace in ("", where) and _selected(http, _labels(each))
        ]
        return {
            "kind": f"{kind}List",
            "apiVersion": f"{group}/{version}" if group else version,
            "metadata": {"resourceVersion": str(self._version)},
            "items": items,
        }

    async def _watch(self, http: Request, group: str, plural: str, namespace: str) -> AsyncIterator[bytes]:
        since = int(http.query_params.get("resourceVersion") or 0)
        place = 0
        while True:
            while place < len(self._log):
                version, what, where, labels, line = self._log[place]
                place += 1
                ours = (what, version > since) == (f"{group}/{plural}", True) and namespace in ("", where)
                if ours and _selected(http, labels):
                    yield line
            async with self._grown:
                await self._grown.wait_for(lambda at=place: at < len(self._log))

    # --- the store

    async def create(self, group: str, version: str, plural: str, namespace: str, document: Document) -> Document:
        document = copy.deepcopy(document)
        meta = document["metadata"]
        name = meta.setdefault("name", meta.get("generateName", "") + uuid.uuid4().hex[:5])
        if namespace:
            meta["namespace"] = namespace
        key = (group, plural, namespace, name)
        if key in self.objects:
            raise RefusedError(409, "AlreadyExists", f'{plural} "{name}" already exists')
        kind, _ = RESOURCES[group, version][plural]
        document |= {"kind": kind, "apiVersion": f"{group}/{version}" if group else version}
        if kind in self.schemas and (found := faults(self.schemas[kind], _bare(document))):
            raise RefusedError(422, "Invalid", "; ".join(found))
        meta |= {"uid": str(uuid.uuid4()), "creationTimestamp": "2026-11-23T00:00:00Z"}
        await self._store(key, document, "ADDED")
        return document

    async def _patch(self, key: Key, sub: str, patch: Any, kind: str) -> Document:
        now = copy.deepcopy(self.objects[key])
        wanted = (patch.get("metadata") or {}).pop("resourceVersion", None) if isinstance(patch, dict) else None
        if wanted is not None and wanted != now["metadata"]["resourceVersion"]:
            raise RefusedError(409, "Conflict", "the object has been modified")
        if kind == "application/json-patch+json":
            return await self._changed(key, _patched(now, patch))
        assert kind == "application/merge-patch+json", kind
        if key[1] == "trainingrequests":  # the CRD has a status subresource
            patch = (
                {"status": patch.get("status")}
                if sub == "status"
                else {k: v for k, v in patch.items() if k != "status"}
            )
        return await self._changed(key, _merged(now, patch))

    async def _replace(self, key: Key, document: Document) -> Document:
        if document["metadata"].get("resourceVersion") != self.objects[key]["metadata"]["resourceVersion"]:
            raise RefusedError(409, "Conflict", "the object has been modified")
        return await self._changed(key, document)

    async def _changed(self, key: Key, document: Document) -> Document:
        if document == self.objects[key]:
            return document
        schema = self.schemas.get(document["kind"])
        if schema and (found := faults(schema, _bare(document), _bare(self.objects[key]))):
            raise RefusedError(422, "Invalid", "; ".join(found))
        if document["metadata"].get("deletionTimestamp") and not document["metadata"].get("finalizers"):
            await self._gone(key)
            return document
        await self._store(key, document, "MODIFIED")
        return document

    async def delete(self, key: Key) -> None:
        document = copy.deepcopy(self.objects[key])
        if document["metadata"].get("finalizers"):
            document["metadata"]["deletionTimestamp"] = "2026-11-23T00:00:01Z"
            await self._store(key, document, "MODIFIED")
        else:
            await self._gone(key)

    async def _gone(self, key: Key) -> None:
        """Delete an object and the objects that it owns."""
        document = self.objects.pop(key)
        await self._tell(key, document, "DELETED")
        uid = document["metadata"]["uid"]
        for other, each in list(self.objects.items()):
            if any(owner["uid"] == uid for owner in each["metadata"].get("ownerReferences", ())):
                await self.delete(other)

    async def _store(self, key: Key, document: Document, change: str) -> None:
        self.objects[key] = document
        await self._tell(key, document, change)

    async def _tell(self, key: Key, document: Document, change: str) -> None:
        self._version += 1
        document["metadata"]["resourceVersion"] = str(self._version)
        line = json.dumps({"type": change, "object": document}).encode() + b"\n"
        labels = dict(_labels(document))
        self._log.append((self._version, f"{key[0]}/{key[1]}", key[2], labels, line))
        async with self._grown:
            self._grown.notify_all()

    # --- for tests

    def all(self, plural: str) -> list[Document]:
        return [self.objects[key] for key in sorted(key for key in self.objects if key[1] == plural)]

    async def change(self, key: Key, patch: Document) -> None:
        """Change an object like a controller or a kubelet."""
        if key in self.objects:
            await self._changed(key, _merged(copy.deepcopy(self.objects[key]), patch))

    @property
    def writes(self) -> int:
        """The number of requested changes, without events."""
        return sum(n for call, n in self.calls.items() if not call.startswith("GET") and call != "POST events")


VERBS = ["create", "delete", "get", "list", "patch", "update", "watch"]


def _bare(document: Document) -> Document:
    """Return a document without the server's additions."""
    return {**document, "metadata": {"name": document["metadata"]["name"]}}


def _labels(document: Document) -> dict[str, str]:
    return document["metadata"].get("labels", {})


def _selected(http: Request, labels: dict[str, str]) -> bool:
    wanted = [each for each in (http.query_params.get("labelSelector") or "").split(",") if each]
    return all((each.partition("=")[2] or labels.get(each)) == labels.get(each.partition("=")[0]) for each in wanted)


def _patched(document: Document, operations: list[Document]) -> Document:
    """Apply a JSON patch (RFC 6902)."""
    try:
        return jsonpatch.apply_patch(document, operations)
    except jsonpatch.JsonPatchException as error:
        raise RefusedError(422, "Invalid", str(error)) from error


def _merged(document: Any, patch: Any) -> Any:
    """Apply a merge patch (RFC 7386)."""
    if not isinstance(patch, dict):
        return patch
    found = dict(document) if isinstance(document, dict) else {}
    for name, value in patch.items():
        if value is None:
            found.pop(name, None)
        else:
            found[name] = _merged(found.get(name), value)
    return found


def _status(code: int, reason: str, message: str) -> Response:
    document = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": reason}
    return JSONResponse(document | {"message": message}, status_code=code)
