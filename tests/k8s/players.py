"""Stand-ins for what a bare API server lacks: the JobSet controller, the garbage collector, the scheduler.

Each reads the same view and writes through the API; none knows the operator.
"""

import asyncio
import contextlib
from itertools import product

from tests.k8s.api import Api, Document, RefusedError, View

KINDS = ("trainingrequests", "jobsets", "pods", "configmaps", "secrets", "services")
JOB_BACKOFF = 6
"""Default number of restarts of a Job's pods."""

HOSTNAME = "kubernetes.io/hostname"


class Players:
    """The stand-ins of one namespace; `nodes`: places for pods without a node."""

    def __init__(self, api: Api, namespace: str, nodes: tuple[str, ...], *, collector: bool) -> None:
        self._api, self._namespace, self._nodes, self._collector = api, namespace, nodes, collector
        self.view = View(api, namespace, KINDS)

    async def play(self) -> None:
        """Act until cancelled."""
        keeping = asyncio.create_task(self.view.keep())
        try:
            while True:
                await self.view.grown.wait()
                self.view.grown.clear()
                await self._round()
                await asyncio.sleep(0.05)
                if keeping.done():
                    keeping.result()
        finally:
            keeping.cancel()

    async def _round(self) -> None:
        pods = [pod for pod in self.view.of("pods") if not pod["metadata"].get("deletionTimestamp")]
        for job_set in self.view.of("jobsets"):
            uid = job_set["metadata"]["uid"]
            await self._job_set(job_set, [pod for pod in pods if owners(pod) == [uid]])
        for pod in pods:
            if not pod["spec"].get("nodeName") and not pod["spec"].get("schedulingGates"):
                await self._bind(pod)
        if self._collector:
            await self._collect()

    # --- JobSet

    async def _job_set(self, job_set: Document, pods: list[Document]) -> None:
        meta = job_set["metadata"]
        if job_set.get("status", {}).get("conditions") or meta.get("deletionTimestamp"):
            return
        phases = {pod["metadata"]["name"]: pod.get("status", {}).get("phase") for pod in pods}
        restarts = sum(
            each["restartCount"] for pod in pods for each in pod.get("status", {}).get("containerStatuses", ())
        )
        wanted = self._pods_of(job_set)
        for name in wanted.keys() - phases.keys():
            await self._made("pods", wanted[name])
        if "Failed" in phases.values() or restarts > JOB_BACKOFF:
            await self._end(job_set, "Failed", f"{restarts} restarts")
        elif len(phases) == len(wanted) and set(phases.values()) == {"Succeeded"}:
            await self._end(job_set, "Completed", "all jobs have completed")

    def _pods_of(self, job_set: Document) -> dict[str, Document]:
        meta, found = job_set["metadata"], {}
        owner = {"apiVersion": job_set["apiVersion"], "kind": "JobSet", "name": meta["name"], "uid": meta["uid"]}
        for job in job_set["spec"]["replicatedJobs"]:
            spec = job["template"]["spec"]
            for replica, index in product(range(job.get("replicas", 1)), range(spec["completions"])):
                name = f"{meta['name']}-{job['name']}-{replica}-{index}"
                containers = [
                    each | {"env": [*each.get("env", ()), {"name": "JOB_COMPLETION_INDEX", "value": str(index)}]}
                    for each in spec["template"]["spec"]["containers"]
                ]
                found[name] = {
                    "metadata": {
                        "name": name,
                        "labels": spec["template"]["metadata"]["labels"],
                        "ownerReferences": [owner],
                    },
                    "spec": spec["template"]["spec"] | {"containers": containers},
                }
        return found

    async def _end(self, job_set: Document, kind: str, message: str) -> None:
        at = "2026-01-01T00:00:00Z"
        condition = {"type": kind, "status": "True", "reason": kind, "message": message, "lastTransitionTime": at}
        name = job_set["metadata"]["name"]
        await self._api.patch("jobsets", name, {"status": {"conditions": [condition]}}, self._namespace, "status")

    # --- scheduler

    async def _bind(self, pod: Document) -> None:
        name = pod["metadata"]["name"]
        node = pod["spec"].get("nodeSelector", {}).get(HOSTNAME, self._nodes[0])
        binding = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": name},
            "target": {"apiVersion": "v1", "kind": "Node", "name": node},
        }
        with contextlib.suppress(RefusedError):  # it is bound or gone
            await self._api.ask("POST", f"/api/v1/namespaces/{self._namespace}/pods/{name}/binding", binding)

    # --- garbage collector

    async def _collect(self) -> None:
        """Delete objects without an existing owner; each is looked up, since views of several kinds differ in time."""
        there = {each["metadata"]["uid"] for plural in KINDS[:2] for each in self.view.of(plural)}
        for kind, document in [(plural, each) for plural in KINDS[1:] for each in self.view.of(plural)]:
            meta = document["metadata"]
            lost = [owner for owner in meta.get("ownerReferences", ()) if owner["uid"] not in there]
            if lost and not meta.get("deletionTimestamp") and not await self._is_there(lost[0]):
                await self._api.delete(kind, meta["name"], self._namespace)

    async def _is_there(self, owner: Document) -> bool:
        plural = {"TrainingRequest": "trainingrequests", "JobSet": "jobsets"}[owner["kind"]]
        found = await self._api.get(plural, owner["name"], self._namespace)
        return found is not None and found["metadata"]["uid"] == owner["uid"]

    async def _made(self, plural: str, document: Document) -> None:
        with contextlib.suppress(RefusedError):  # it was created a moment ago, or its namespace is being deleted
            await self._api.create(plural, document, self._namespace)


def owners(document: Document) -> list[str]:
    return [owner["uid"] for owner in document["metadata"].get("ownerReferences", ())]
