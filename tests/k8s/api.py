"""Calls to an API server as a given user, and a view of its objects that watches maintain."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any, TypeAlias

import httpx2
from lightkube.config import client_adapter
from lightkube.config.kubeconfig import SingleConfig

Document: TypeAlias = dict[str, Any]

MERGE = "application/merge-patch+json"
GROUPS = {
    "jobsets": "apis/jobset.x-k8s.io/v1alpha2",
    "trainingrequests": "apis/kofn.dev/v1alpha1",
    "customresourcedefinitions": "apis/apiextensions.k8s.io/v1",
    "clusterroles": "apis/rbac.authorization.k8s.io/v1",
    "clusterrolebindings": "apis/rbac.authorization.k8s.io/v1",
    "rolebindings": "apis/rbac.authorization.k8s.io/v1",
    "mutatingwebhookconfigurations": "apis/admissionregistration.k8s.io/v1",
    "validatingwebhookconfigurations": "apis/admissionregistration.k8s.io/v1",
}


class RefusedError(Exception):
    """A refusal with the server's code and words."""

    def __init__(self, code: int, words: str) -> None:
        super().__init__(f"{code}: {words}")
        self.code = code


def client_of(config: SingleConfig) -> httpx2.AsyncClient:
    """Return a client with the configuration's TLS and credentials."""
    limits = httpx2.Timeout(60.0, read=None, pool=None)
    return client_adapter.AsyncClient(config, client_adapter.ConnectionParams(timeout=limits))


def path_of(plural: str, namespace: str = "", name: str = "", sub: str = "") -> str:
    parts = [GROUPS.get(plural, "api/v1"), f"namespaces/{namespace}" if namespace else "", plural, name, sub]
    return "/" + "/".join(part for part in parts if part)


class Api:
    """Calls as `user`, with their `extra`; else as the client itself."""

    def __init__(self, client: httpx2.AsyncClient, user: str = "", extra: str = "") -> None:
        self._client = client
        self._headers = {"Impersonate-User": user, "Impersonate-Group": "system:authenticated"} if user else {}
        if extra:
            self._headers["Impersonate-Extra-Project"] = extra

    def named(self, user: str, extra: str = "") -> "Api":
        return Api(self._client, user, extra)

    async def ask(self, method: str, path: str, body: Any = None, kind: str = "application/json") -> Any:
        """Make a request. RefusedError: it is not granted."""
        content = None if body is None else json.dumps(body).encode()
        headers = self._headers | {"Content-Type": kind}
        answer = await self._client.request(method, path, content=content, headers=headers)
        if answer.status_code >= 400:
            raise RefusedError(answer.status_code, answer.text)
        return answer.json()

    async def create(self, plural: str, document: Document, namespace: str = "") -> Document:
        return await self.ask("POST", path_of(plural, namespace), document)

    async def get(self, plural: str, name: str, namespace: str = "") -> Document | None:
        """Return an object; None: it does not exist."""
        try:
            return await self.ask("GET", path_of(plural, namespace, name))
        except RefusedError as error:
            if error.code != 404:
                raise
            return None

    async def all(self, plural: str, namespace: str = "") -> list[Document]:
        return (await self.ask("GET", path_of(plural, namespace)))["items"]

    async def patch(self, plural: str, name: str, patch: Document, namespace: str = "", sub: str = "") -> None:
        """Patch an object; a missing one needs no patch."""
        try:
            await self.ask("PATCH", path_of(plural, namespace, name, sub), patch, MERGE)
        except RefusedError as error:
            if error.code != 404:
                raise

    async def delete(self, plural: str, name: str, namespace: str = "", grace_s: int | None = None) -> None:
        """Delete an object; it may be gone already."""
        options = {"propagationPolicy": "Background"} | ({} if grace_s is None else {"gracePeriodSeconds": grace_s})
        try:
            await self.ask("DELETE", path_of(plural, namespace, name), options)
        except RefusedError as error:
            if error.code != 404:
                raise

    async def watch(self, plural: str, namespace: str, version: str) -> AsyncIterator[tuple[str, Document]]:
        """Yield the changes since a version, until the server ends the watch."""
        query = {"watch": "true", "resourceVersion": version, "timeoutSeconds": "300"}
        async with self._client.stream(
            "GET", path_of(plural, namespace), params=query, headers=self._headers
        ) as answer:
            async for line in answer.aiter_lines():
                change = json.loads(line)
                yield change["type"], change["object"]


class View:
    """All objects of some kinds in a namespace, by kind and name; `changed` is called after each change."""

    def __init__(self, api: Api, namespace: str, plurals: tuple[str, ...]) -> None:
        self._api, self._namespace = api, namespace
        self._objects: dict[str, dict[str, Document]] = {plural: {} for plural in plurals}
        self.grown = asyncio.Event()
        self.heard: list[Callable[[str, Document], None]] = []

    def of(self, plural: str) -> list[Document]:
        return list(self._objects[plural].values())

    def find(self, plural: str, name: str) -> Document | None:
        return self._objects[plural].get(name)

    async def keep(self) -> None:
        """Maintain the view until cancelled."""
        await asyncio.gather(*(self._keep(plural) for plural in self._objects))

    async def _keep(self, plural: str) -> None:
        while True:
            listed = await self._api.ask("GET", path_of(plural, self._namespace))
            self._objects[plural] = {each["metadata"]["name"]: each for each in listed["items"]}
            self.grown.set()
            async for change, document in self._api.watch(
                plural, self._namespace, listed["metadata"]["resourceVersion"]
            ):
                if change == "ERROR":
                    break
                if change != "BOOKMARK":
                    self._take(plural, change, document)

    def _take(self, plural: str, change: str, document: Document) -> None:
        name = document["metadata"]["name"]
        if change == "DELETED":
            self._objects[plural].pop(name, None)
        else:
            self._objects[plural][name] = document
        for hear in self.heard:
            hear(plural, document)
        self.grown.set()
