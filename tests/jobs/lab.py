"""An operator beside an API server in this process; the JobSet controller and kubelets are simulated."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable
from typing import Any

import kopf
import uvicorn
from lightkube import AsyncClient, KubeConfig

from kofn_jobs.crd import definition
from kofn_jobs.operator.handlers import Handlers
from kofn_jobs.operator.operate import configured
from tests.jobs.api_server import ApiServer, Document
from tests.jobs.published import published
from tests.waiting import PATIENCE_S


def kubeconfig(url: str) -> Document:
    """Return the kubeconfig of a user of that server."""
    return {
        "current-context": "lab",
        "contexts": [{"name": "lab", "context": {"cluster": "lab", "user": "ada", "namespace": "default"}}],
        "clusters": [{"name": "lab", "cluster": {"server": url}}],
        "users": [{"name": "ada", "user": {"token": "none"}}],
    }


class Lab:
    """`url` is the API server's; `ends[attempt]`: the end of that attempt's workload."""

    def __init__(self, api: ApiServer, url: str) -> None:
        self.api, self.url = api, url
        self.ends: Callable[[str, int], str] = lambda name, attempt: "Completed"
        self.handlers: Handlers

    @contextlib.asynccontextmanager
    async def operator(self, webhook: kopf.WebhookServer | None = None) -> AsyncIterator[None]:
        """Run one operator until the block ends; then it stops at once, as if killed."""
        registry, settings = kopf.OperatorRegistry(), kopf.OperatorSettings()
        client = AsyncClient(KubeConfig.from_dict(kubeconfig(self.url)))
        self.handlers = Handlers(client)
        self.handlers.register(registry, webhook=webhook is not None)
        settings.admission.server, settings.admission.managed = webhook, "kofn.dev"
        configured(settings, registry, lambda **_: kopf.ConnectionInfo(server=self.url))
        settings.process.ultimate_exiting_timeout = None  # otherwise it would kill this process seconds later
        settings.networking.error_backoffs = ()
        ready = asyncio.Event()
        running = asyncio.create_task(
            kopf.operator(registry=registry, settings=settings, clusterwide=True, standalone=True, ready_flag=ready)
        )
        try:
            await asyncio.wait([running, asyncio.ensure_future(ready.wait())], return_when="FIRST_COMPLETED")
            if running.done():
                running.result()
            yield
        finally:
            running.cancel()
            await asyncio.wait([running], timeout=PATIENCE_S)
            await client.close()

    async def submit(self, name: str, requester: str = "ada", **spec: Any) -> None:
        document = {
            "metadata": {"name": name, "annotations": {"kofn.dev/requester": requester}},
            "spec": {"accelerators": 3, "backoffSeconds": 0, **spec},
        }
        await self.api.create("kofn.dev", "v1alpha1", "trainingrequests", "default", document)

    def request(self, name: str) -> Document:
        return self.api.objects["kofn.dev", "trainingrequests", "default", name]

    def phase(self, name: str) -> str:
        return self.request(name).get("status", {}).get("phase", "Pending")

    async def until(self, true: Callable[[], bool], timeout_s: float = 20.0) -> None:
        async with asyncio.timeout(timeout_s):
            while not true():
                await asyncio.sleep(0.01)

    async def play(self) -> None:
        """Create the pods of job sets, run them once they are ungated, and end them, until cancelled."""
        while True:
            pods: dict[str, list[Document]] = {}
            for pod in self.api.all("pods"):
                pods.setdefault(pod["metadata"]["ownerReferences"][0]["uid"], []).append(pod)
                if pod["metadata"]["labels"].get("kofn.dev/role") == "control":
                    await self._ready(pod)
            for job_set in self.api.all("jobsets"):
                await self._play(job_set, pods.get(job_set["metadata"]["uid"], []))
            await asyncio.sleep(0.01)

    async def _play(self, job_set: Document, pods: list[Document]) -> None:
        meta = job_set["metadata"]
        owner = [{"uid": meta["uid"], "kind": "JobSet", "name": meta["name"], "apiVersion": job_set["apiVersion"]}]
        if not pods:
            for job in job_set["spec"]["replicatedJobs"]:
                template = job["template"]["spec"]["template"]
                for index in range(job["template"]["spec"]["completions"]):
                    name = f"{meta['name']}-{job['name']}-0-{index}"
                    labels = template["metadata"]["labels"]
                    document = {
                        "metadata": {"name": name, "labels": labels, "ownerReferences": owner},
                        "spec": template["spec"],
                    }
                    await self.api.create("", "v1", "pods", "default", document)
            return
        for pod in pods:
            if not pod["spec"].get("schedulingGates"):
                await self._ready(pod)
        labels = meta["labels"]
        running = self.phase(labels["kofn.dev/request"]) == "Running"
        if running and not job_set.get("status"):
            end = self.ends(labels["kofn.dev/request"], int(labels["kofn.dev/attempt"]))
            if end:
                condition = {"type": end, "status": "True", "message": "as it was played"}
                key = ("jobset.x-k8s.io", "jobsets", "default", meta["name"])
                await self.api.change(key, {"status": {"conditions": [condition]}})

    async def _ready(self, pod: Document) -> None:
        conditions = [{"type": "Ready", "status": "True"}]
        key = ("", "pods", "default", pod["metadata"]["name"])
        if pod.get("status", {}).get("conditions") != conditions:
            await self.api.change(key, {"status": {"phase": "Running", "conditions": conditions}})


@contextlib.asynccontextmanager
async def lab(nodes: tuple[int, ...] = (10, 10)) -> AsyncIterator[Lab]:
    api = ApiServer()
    crd = definition()
    api.schemas["TrainingRequest"] = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    api.schemas["JobSet"] = published()["JobSet"]["schema"] | {"x-kubernetes-validations": []}
    api.schemas["JobSet"]["properties"]["status"] = {
        "type": "object",
        "x-kubernetes-preserve-unknown-fields": True,
    }
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        config = uvicorn.Config(api.app, log_level="error", lifespan="off", timeout_graceful_shutdown=1)
        server = uvicorn.Server(config)
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        await api.create("", "v1", "namespaces", "", {"metadata": {"name": "default"}})
        for number, accelerators in enumerate(nodes):
            await api.create("", "v1", "nodes", "", _node(f"node-{number}", accelerators))
        for name in ("JobSet", "TrainingRequest"):
            await api.create("apiextensions.k8s.io", "v1", "customresourcedefinitions", "", _crd(name, crd))
        made = Lab(api, f"http://127.0.0.1:{listener.getsockname()[1]}")
        playing = asyncio.create_task(made.play())
        try:
            yield made
        finally:
            playing.cancel()
            server.should_exit = True
            await asyncio.gather(serving, playing, return_exceptions=True)


def _node(name: str, accelerators: int) -> Document:
    status = {
        "allocatable": {"nvidia.com/gpu": str(accelerators)},
        "conditions": [{"type": "Ready", "status": "True"}],
    }
    return {"metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}}, "spec": {}, "status": status}


def _crd(name: str, ours: Document) -> Document:
    if name == "TrainingRequest":
        return ours
    versions = [{"name": "v1alpha2", "served": True}]
    spec = {"group": "jobset.x-k8s.io", "names": {"kind": "JobSet", "plural": "jobsets"}, "versions": versions}
    return {"metadata": {"name": "jobsets.jobset.x-k8s.io"}, "spec": spec}
