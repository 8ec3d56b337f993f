"""The cluster of KUBECONFIG with stand-ins for its missing parts, and operators as processes that may be killed."""

import asyncio
import copy
import os
import socket
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import httpx2
import yaml

from kofn_jobs.api import connection
from kofn_jobs.crd import definition
from tests.jobs.lab import kubeconfig
from tests.jobs.published import published
from tests.k8s.api import Api, Document, RefusedError, client_of
from tests.k8s.gateway import Gateway
from tests.k8s.kubelet import ActedKubelet
from tests.k8s.players import KINDS, Players

BASE = Path(__file__).parents[2] / "jobs" / "deploy" / "base"
MARK = {"suite.kofn.dev/made": "true"}
WAIT_S = 120.0

CEL, GATES = 29, 27
"""Minor versions of Kubernetes 1 that introduced them."""


class Suite:
    """One namespace of the cluster; operators have the rights of jobs/deploy/base/rights.yaml there."""

    def __init__(self, client: httpx2.AsyncClient, api: Api, namespace: str, minor: int, folder: Path) -> None:
        self.client, self.api, self.namespace, self.minor, self.folder = client, api, namespace, minor, folder
        self.nodes = (f"{namespace}-a", f"{namespace}-b")
        self.players: Players
        self.players_api: Api

    # --- operators

    @asynccontextmanager
    async def operator(self, *arguments: str, dies_after: int | None = None) -> AsyncIterator[Gateway]:
        """Run an operator process until the block ends or the gateway kills it; one that ends by
        itself is restarted.
        """
        account = f"system:serviceaccount:{self.namespace}:kofn-operator"
        gateway = Gateway(self.client, user=account, gates=self.minor < GATES)
        async with gateway.serving() as url:
            path = self.folder / f"kubeconfig-{uuid.uuid4().hex[:6]}"
            path.write_text(yaml.safe_dump(kubeconfig(url)))
            ports = ["--metrics-port", str(_free()), "--health-port", str(_free())]
            argv = [sys.executable, "-m", "kofn_jobs.operator", "--namespace", self.namespace, *ports, *arguments]
            life = _Life([*argv, "--lease-namespace", self.namespace], path, self.folder / "operator.log")
            gateway.kill = life.kill
            gateway.dies_after = dies_after
            try:
                async with running(life.lead()):
                    yield gateway
            finally:
                life.kill()
                await self.api.ask("DELETE", f"/apis/coordination.k8s.io/v1/namespaces/{self.namespace}/leases")

    # --- requests

    async def submit(self, name: str, requester: str = "ada", user: str = "", extra: str = "", **spec: Any) -> None:
        """Submit a request as `user`, whom a webhook notes; else as the suite, which notes `requester`."""
        document = {
            "apiVersion": "kofn.dev/v1alpha1",
            "kind": "TrainingRequest",
            "metadata": {"name": name, "annotations": {} if user else {"kofn.dev/requester": requester}},
            "spec": {"accelerators": 3, "backoffSeconds": 0, **spec},
        }
        await self.api.named(user, extra).create("trainingrequests", document, self.namespace)

    async def until_webhook(self) -> None:
        """Wait until the operator has registered its webhook."""
        async with asyncio.timeout(WAIT_S):
            for plural in ("mutatingwebhookconfigurations", "validatingwebhookconfigurations"):
                while not (await self.api.get(plural, "kofn.dev") or {}).get("webhooks"):
                    await asyncio.sleep(0.2)

    def request(self, name: str) -> Document:
        return self.players.view.find("trainingrequests", name) or {}

    def status(self, name: str) -> Document:
        return self.request(name).get("status", {})

    def phase(self, name: str) -> str:
        return self.status(name).get("phase", "Pending")

    def left(self, name: str = "") -> list[str]:
        """Return the existing pods and workloads, of a request or of all."""
        view = self.players.view
        found = [*view.of("pods"), *view.of("jobsets")]
        return [
            each["metadata"]["name"]
            for each in found
            if not name or each["metadata"]["labels"].get("kofn.dev/request") == name
        ]

    async def until(self, true: Callable[[], bool], timeout_s: float = WAIT_S) -> None:
        try:
            async with asyncio.timeout(timeout_s):
                while not true():
                    await asyncio.sleep(0.05)
        except TimeoutError:
            log = (self.folder / "operator.log").read_text()[-3000:]
            told = [(each["metadata"]["name"], each.get("status")) for each in self.players.view.of("trainingrequests")]
            raise AssertionError(f"it does not come to pass: {told[:5]}\n{log}") from None

    @asynccontextmanager
    async def acted(self) -> AsyncIterator[ActedKubelet]:
        kubelet = ActedKubelet(self.players_api, self.players.view, self.namespace)
        async with running(kubelet.run()):
            yield kubelet

    # --- objects for all tests

    async def _prepare(self, accelerators: int) -> None:
        for kind, document in (("TrainingRequest", definition()), ("JobSet", _job_set_definition())):
            await self._define(kind, document)
        await self._ensure("namespaces", {"metadata": {"name": self.namespace, "labels": MARK}})
        for node in self.nodes:
            document = {"metadata": {"name": node, "labels": MARK | {"kubernetes.io/hostname": node}}}
            await self._ensure("nodes", document)
            status = {
                "capacity": {"nvidia.com/gpu": str(accelerators)},
                "allocatable": {"nvidia.com/gpu": str(accelerators)},
                "conditions": [{"type": "Ready", "status": "True"}],
            }
            await self.api.patch("nodes", node, {"status": status}, sub="status")
            await self.api.patch("nodes", node, {"spec": {"taints": None}})
        await self._ensure("serviceaccounts", {"metadata": {"name": "default"}}, self.namespace)
        await self._rights()

    async def _rights(self) -> None:
        """Create the rights of the operator, and of ada, who may train; eve may not."""
        for document in yaml.safe_load_all((BASE / "rights.yaml").read_text()):
            if document["kind"] == "ClusterRole":
                document["metadata"] |= {"name": f"{self.namespace}-{document['metadata']['name']}", "labels": MARK}
                await self._ensure("clusterroles", document)
        account = {"kind": "ServiceAccount", "name": "kofn-operator", "namespace": self.namespace}
        await self._bound("clusterrolebindings", "kofn-operator", account, "")
        person = {"kind": "User", "name": "ada", "apiGroup": "rbac.authorization.k8s.io"}
        await self._bound("rolebindings", "kofn-trainer", person, self.namespace)

    async def _bound(self, plural: str, role: str, subject: Document, namespace: str) -> None:
        reference = {
            "apiGroup": "rbac.authorization.k8s.io",
            "kind": "ClusterRole",
            "name": f"{self.namespace}-{role}",
        }
        meta = {"name": f"{self.namespace}-{role}", "labels": MARK}
        await self._ensure(plural, {"metadata": meta, "roleRef": reference, "subjects": [subject]}, namespace)

    async def _define(self, kind: str, document: Document) -> None:
        """Create a CRD unless it exists, edited for servers that do not know present features."""
        if self.minor < CEL:
            document = _for_old_servers(document)
        await self._ensure("customresourcedefinitions", document)
        name, group = document["metadata"]["name"], document["spec"]["group"]
        version = document["spec"]["versions"][0]["name"]
        async with asyncio.timeout(WAIT_S):
            while True:
                with suppress(RefusedError):
                    await self.api.ask("GET", f"/apis/{group}/{version}/{name.partition('.')[0]}")
                    return
                await asyncio.sleep(0.2)

    async def _ensure(self, plural: str, document: Document, namespace: str = "") -> None:
        try:
            await self.api.create(plural, document, namespace)
        except RefusedError as error:
            if error.code != 409:
                raise

    async def _clean(self) -> None:
        """Delete everything that carries the mark, and the namespace with its content."""
        with suppress(RefusedError):
            for plural in ("trainingrequests", "persistentvolumeclaims"):
                for each in await self.api.all(plural, self.namespace):
                    patch = {"metadata": {"finalizers": None}}
                    await self.api.patch(plural, each["metadata"]["name"], patch, self.namespace)
        for plural in (*KINDS, "persistentvolumeclaims"):
            with suppress(RefusedError):  # a kind that could not be created
                for each in await self.api.all(plural, self.namespace):
                    await self.api.delete(plural, each["metadata"]["name"], self.namespace, grace_s=0)
        for node in self.nodes:
            await self.api.delete("nodes", node)
        for role in ("kofn-operator", "kofn-trainer"):
            await self.api.delete("clusterroles", f"{self.namespace}-{role}")
        await self.api.delete("clusterrolebindings", f"{self.namespace}-kofn-operator")
        for plural in ("mutatingwebhookconfigurations", "validatingwebhookconfigurations"):
            await self.api.delete(plural, "kofn.dev")
        await self.api.delete("namespaces", self.namespace)


class _Life:
    """A process that is restarted when it ends, like a Deployment's, until it is killed."""

    def __init__(self, argv: list[str], path: Path, log: Path) -> None:
        self._argv, self._path, self._log = argv, path, log
        self._dead = False
        self._process = self._start()

    def _start(self) -> "subprocess.Popen[bytes]":
        with self._log.open("ab") as log:
            environment = os.environ | {"KUBECONFIG": str(self._path)}
            return subprocess.Popen(self._argv, env=environment, stdout=log, stderr=log)

    async def lead(self) -> None:
        """Restart the process until cancelled."""
        while True:
            if self._process.poll() is not None and not self._dead:
                self._process = self._start()
            await asyncio.sleep(0.5)

    def kill(self) -> None:
        self._dead = True
        self._process.kill()
        self._process.wait()


@asynccontextmanager
async def running(course: Any) -> AsyncIterator[None]:
    """Run the course beside the block and raise its error here."""
    task = asyncio.create_task(course)
    try:
        yield
    finally:
        if task.done():
            task.result()
        task.cancel()
        await asyncio.wait([task])


@asynccontextmanager
async def suite(folder: Path, accelerators: int = 10) -> AsyncIterator[Suite]:
    """Yield the suite of a new namespace, with two simulated nodes."""
    async with client_of(connection()) as client, AsyncExitStack() as stack:
        api = Api(client)
        minor = int((await api.ask("GET", "/version"))["minor"].rstrip("+"))
        made = Suite(client, api, f"kofn-{uuid.uuid4().hex[:6]}", minor, folder)
        stack.push_async_callback(made._clean)
        await made._prepare(accelerators)
        gateway = Gateway(client, gates=minor < GATES)
        inner = await stack.enter_async_context(gateway.serving())
        timeout = httpx2.Timeout(60.0, read=None, pool=None)
        behind = await stack.enter_async_context(httpx2.AsyncClient(base_url=inner, timeout=timeout))
        made.players_api = Api(behind)
        managed = await _has_controllers(api, made.namespace)
        made.players = Players(made.players_api, made.namespace, made.nodes, collector=not managed)
        await stack.enter_async_context(running(made.players.play()))
        yield made


async def _has_controllers(api: Api, namespace: str) -> bool:
    """Return whether a controller manager, and so a garbage collector, serves the cluster: it writes into new
    namespaces.
    """
    for _ in range(10):
        if await api.get("configmaps", "kube-root-ca.crt", namespace) is not None:
            return True
        await asyncio.sleep(0.2)
    return False


def _job_set_definition() -> Document:
    names = {"kind": "JobSet", "plural": "jobsets", "singular": "jobset", "listKind": "JobSetList"}
    schema = copy.deepcopy(published()["JobSet"]["schema"])
    schema["properties"]["status"] = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {
        "name": "v1alpha2",
        "served": True,
        "storage": True,
        "subresources": {"status": {}},
        "schema": {"openAPIV3Schema": schema},
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": "jobsets.jobset.x-k8s.io",
            "labels": MARK,
            "annotations": {"api-approved.kubernetes.io": "https://github.com/kubernetes-sigs/jobset"},
        },
        "spec": {"group": "jobset.x-k8s.io", "scope": "Namespaced", "names": names, "versions": [version]},
    }


def _for_old_servers(document: Any) -> Any:
    """Return the document without CEL rules, and without empty default texts, which 1.20 takes for null."""
    if isinstance(document, list):
        return [_for_old_servers(each) for each in document]
    if not isinstance(document, dict):
        return document
    return {
        key: _for_old_servers(value)
        for key, value in document.items()
        if key != "x-kubernetes-validations" and (key, value) != ("default", "")
    }


def _free() -> int:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        port: int = holder.getsockname()[1]
        return port


Course = Callable[[Suite], Awaitable[None]]


def run(course: Course, folder: Path, accelerators: int = 10) -> None:
    async def whole() -> None:
        async with suite(folder, accelerators) as made:
            await course(made)

    asyncio.run(whole())
