"""Kubelets that are played: one says what pods do, the other starts their processes in namespaces of this machine.

pod -- eth0, 198.18.0.x -- bridge kofn-pods, 198.18.0.1, where operator and tests are
"""

import asyncio
import base64
import contextlib
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kofn_jobs.manifests import ATTEMPT_LABEL, REQUEST_LABEL, ROLE_LABEL, WORKER
from tests.k8s.api import Api, Document, View

NET = "198.18.0"
BRIDGE = "kofn-pods"
PROBE_S = 0.5


class ActedKubelet:
    """Pods are ready at once; workers end as `ends(request, attempt)` says, once their request runs."""

    def __init__(self, api: Api, view: View, namespace: str) -> None:
        self._api, self._view, self._namespace = api, view, namespace
        self.ends: Callable[[str, int], str] = lambda name, attempt: "Succeeded"
        self._told: dict[str, str] = {}
        """The reported state, by the pod's uid."""

    async def run(self) -> None:
        """Act until cancelled."""
        while True:
            for pod in self._view.of("pods"):
                await self._act(pod)
            await asyncio.sleep(0.1)

    async def _act(self, pod: Document) -> None:
        meta = pod["metadata"]
        if meta.get("deletionTimestamp"):
            await self._api.delete("pods", meta["name"], self._namespace, grace_s=0)
            return
        if not pod["spec"].get("nodeName"):
            return
        phase = self._phase(meta["labels"])
        if self._told.get(meta["uid"]) in (phase, "Succeeded", "Failed"):
            return
        self._told[meta["uid"]] = phase
        status = _status(phase, "", [_container(each["name"], 0) for each in pod["spec"]["containers"]], ready=True)
        await self._api.patch("pods", meta["name"], {"status": status}, self._namespace, "status")

    def _phase(self, labels: dict[str, str]) -> str:
        request = self._view.find("trainingrequests", labels[REQUEST_LABEL]) or {}
        runs = request.get("status", {}).get("phase") == "Running"
        if labels[ROLE_LABEL] != WORKER or not runs:
            return "Running"
        return self.ends(labels[REQUEST_LABEL], int(labels[ATTEMPT_LABEL])) or "Running"


def _status(phase: str, address: str, containers: list[Document], *, ready: bool) -> Document:
    condition = {"type": "Ready", "status": "True" if ready else "False"}
    found: Document = {"phase": phase, "conditions": [condition], "containerStatuses": containers}
    return found | ({"podIP": address, "podIPs": [{"ip": address}]} if address else {})


def _container(name: str, restarts: int) -> Document:
    return {"name": name, "ready": True, "restartCount": restarts, "image": "", "imageID": ""}


def command(*argv: str) -> None:
    subprocess.run(argv, check=True, capture_output=True)


class Container:
    """One process of a pod, restarted by the pod's policy; `log` keeps its output."""

    def __init__(self, spec: Document, pod: "PodProcesses") -> None:
        self.spec, self._pod = spec, pod
        self.restarts = 0
        self.code: int | None = None
        """The exit code, if the process is not restarted."""
        self.started = ""
        self.process = self._start()

    def _start(self) -> "subprocess.Popen[bytes]":
        environment = {each["name"]: self._value(each) for each in self.spec.get("env", ())}
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        inside = ["nsenter", "--target", str(self._pod.pause.pid), "--mount", "--net"]
        with (self._pod.folder / f"{self.spec['name']}.log").open("ab") as log:
            return subprocess.Popen(
                [*inside, *self.spec["command"]],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd="/",
                env=os.environ | environment | {"PATH": path, "PYTHONPATH": str(Path(__file__).parents[2])},
            )

    def _value(self, entry: Document) -> str:
        if "value" in entry:
            return entry["value"]
        assert entry["valueFrom"]["fieldRef"]["fieldPath"] == "status.podIP"
        return self._pod.address

    def look(self, policy: str) -> None:
        """Restart the process if it has ended and the policy says so."""
        if self.code is not None or (code := self.process.poll()) is None:
            return
        if policy == "Never" or (policy == "OnFailure" and code == 0):
            self.code = code
        else:
            self.restarts += 1
            self.process = self._start()

    async def ready(self) -> bool:
        probe = self.spec.get("readinessProbe")
        if probe is None:
            return self.code is None
        if "tcpSocket" in probe:
            argv = ["bash", "-c", f"exec 3<>/dev/tcp/{self._pod.address}/{probe['tcpSocket']['port']}"]
        else:
            inside = ["nsenter", "--target", str(self._pod.pause.pid), "--mount", "--net"]
            argv = [*inside, *probe["exec"]["command"]]
        trying = await asyncio.create_subprocess_exec(*argv, stderr=asyncio.subprocess.DEVNULL)
        return await trying.wait() == 0


class PodProcesses:
    """A pod's namespaces, volumes and processes."""

    def __init__(self, pod: Document, number: int, folder: Path) -> None:
        self.pod, self.folder = pod, folder
        self.address = f"{NET}.{number + 1}"
        self._network, self._veth = f"kofn-pod-{number}", f"kofn-pod{number}"
        self.containers: list[Container] = []
        folder.mkdir()
        (folder / "hosts").write_text("127.0.0.1 localhost\n")
        command("ip", "netns", "add", self._network)
        peer = ("peer", "name", "eth0", "netns", self._network)
        command("ip", "link", "add", self._veth, "type", "veth", *peer)
        command("ip", "link", "set", self._veth, "master", BRIDGE, "up")
        command("ip", "-n", self._network, "address", "add", f"{self.address}/24", "dev", "eth0")
        for name in ("lo", "eth0"):
            command("ip", "-n", self._network, "link", "set", name, "up")

    def start(self, volumes: dict[str, dict[str, bytes] | Path]) -> None:
        """Start with the volumes, by name: their files, or the folder of a claim. All containers have the same
        mounts.
        """
        mounts = {
            mount["mountPath"]: mount
            for each in self.pod["spec"]["containers"]
            for mount in each.get("volumeMounts", ())
        }
        script, claims = ["mount -t tmpfs none /run"], []
        for parent in sorted({str(Path(place).parent) for place in mounts}):
            upper, work = self.folder / parent.replace("/", "_"), self.folder / f"work{parent.replace('/', '_')}"
            upper.mkdir()
            work.mkdir()
            options = f"lowerdir={parent},upperdir={upper},workdir={work}"
            script.append(f"mount -t overlay overlay -o {shlex.quote(options)} {parent}")
            for place, mount in mounts.items():
                if str(Path(place).parent) != parent:
                    continue
                volume, inside = volumes[mount["name"]], upper / Path(place).name
                if isinstance(volume, Path):
                    source = volume / mount.get("subPath", "")
                    source.mkdir(exist_ok=True)
                    inside.mkdir()
                    claims.append(f"mount --bind {shlex.quote(str(source))} {shlex.quote(place)}")
                else:
                    self._fill(inside, self._seen(mount, volume))
        script += [
            *claims,
            f"mount --bind {shlex.quote(str(self.folder / 'hosts'))} /etc/hosts",
            "echo made",
            "exec sleep infinity",
        ]
        place = ["ip", "netns", "exec", self._network, "unshare", "--mount", "bash", "-ec", "\n".join(script)]
        self.pause = subprocess.Popen(place, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
        assert self.pause.stdout is not None and self.pause.stdout.readline() == b"made\n"
        self.containers = [Container(each, self) for each in self.pod["spec"]["containers"]]

    def _seen(self, mount: Document, files: dict[str, bytes]) -> dict[str, bytes]:
        """Return the volume's files in the mount's folder, whose name may contain a variable."""
        if "subPathExpr" not in mount:
            return files
        (container,) = self.pod["spec"]["containers"]
        folder = mount["subPathExpr"]
        for each in container["env"]:
            folder = folder.replace(f"$({each['name']})", each.get("value", ""))
        return {name.removeprefix(f"{folder}/"): files[name] for name in files if name.startswith(f"{folder}/")}

    def _fill(self, folder: Path, files: dict[str, bytes]) -> None:
        folder.mkdir()
        for name, content in files.items():
            (folder / name).write_bytes(content)

    def status(self, *, ready: bool) -> Document:
        codes = [each.code for each in self.containers]
        phase = "Running" if None in codes else "Failed" if any(codes) else "Succeeded"
        told = [_container(each.spec["name"], each.restarts) for each in self.containers]
        return _status(phase, self.address, told, ready=ready and phase == "Running")

    def kill(self) -> None:
        """End all processes at once, as a power cut does."""
        pids = subprocess.run(["ip", "netns", "pids", self._network], check=True, capture_output=True, text=True)
        for each in pids.stdout.split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(each), signal.SIGKILL)

    def stop(self) -> None:
        for each in self.containers:
            if each.process.poll() is None:
                each.process.send_signal(signal.SIGTERM)
        for each in self.containers:
            try:
                each.process.wait(3)
            except subprocess.TimeoutExpired:
                each.process.kill()
                each.process.wait()
        if hasattr(self, "pause"):
            self.pause.kill()
            self.pause.communicate()
        command("ip", "netns", "delete", self._network)
        # a namespace without processes disappears a moment later, with its interfaces
        subprocess.run(["ip", "link", "delete", self._veth], capture_output=True, check=False)


class Kubelet:
    """Starts the pods' processes; logs stay in `folder`, by pod, and claims in its `claims`, by name."""

    def __init__(self, api: Api, view: View, namespace: str, folder: Path) -> None:
        self._api, self._view, self._namespace, self.folder = api, view, namespace, folder
        self.running: dict[str, PodProcesses] = {}
        """The running pods by uid."""
        self.started: dict[str, float] = {}
        """Start times of each pod's processes, by name."""
        self._told: dict[str, Document] = {}
        self._numbers = 0

    async def run(self) -> None:
        """Act until cancelled; then remove everything. It may run again."""
        command("ip", "link", "add", BRIDGE, "type", "bridge")
        try:
            command("ip", "address", "add", f"{NET}.1/24", "dev", BRIDGE)
            command("ip", "link", "set", BRIDGE, "up")
            while True:
                await self._round()
                await asyncio.sleep(PROBE_S)
        finally:
            for each in self.running.values():
                each.stop()
            self.running.clear()
            command("ip", "link", "delete", BRIDGE)

    def kill(self) -> None:
        """End the processes of all pods at once; cancel run() before it restarts them."""
        for each in self.running.values():
            each.kill()

    async def _round(self) -> None:
        pods = {pod["metadata"]["uid"]: pod for pod in self._view.of("pods") if pod["spec"].get("nodeName")}
        gone = {uid: pod for uid, pod in pods.items() if pod["metadata"].get("deletionTimestamp")}
        new = {uid: pod for uid, pod in pods.items() if uid not in gone and uid not in self.running}
        await asyncio.gather(*(self._remove(uid, pod) for uid, pod in gone.items()))
        await asyncio.gather(*(self._start(uid, pod) for uid, pod in new.items()))
        for uid in self.running.keys() - pods.keys():
            await asyncio.to_thread(self.running.pop(uid).stop)
        self._resolve()
        await asyncio.gather(*(self._tell(uid, each) for uid, each in self.running.items()))

    async def _remove(self, uid: str, pod: Document) -> None:
        if uid in self.running:
            await asyncio.to_thread(self.running.pop(uid).stop)
        await self._api.delete("pods", pod["metadata"]["name"], self._namespace, grace_s=0)

    async def _start(self, uid: str, pod: Document) -> None:
        volumes = {each["name"]: await self._volume(each) for each in pod["spec"].get("volumes", ())}
        if all(content is not None for content in volumes.values()):
            self._numbers += 1
            folder = self.folder / pod["metadata"]["name"]
            made = await asyncio.to_thread(PodProcesses, pod, self._numbers, folder)
            self.running[uid] = made
            self._resolve()
            await asyncio.to_thread(made.start, volumes)
            self.started[pod["metadata"]["name"]] = asyncio.get_running_loop().time()

    async def _volume(self, volume: Document) -> Any:
        """Return a volume's files, or the folder of a claim; None: it does not exist yet."""
        if "emptyDir" in volume:
            return {}
        if "configMap" in volume:
            found = await self._api.get("configmaps", volume["configMap"]["name"], self._namespace)
            return None if found is None else {name: text.encode() for name, text in found["data"].items()}
        if "persistentVolumeClaim" in volume:
            name = volume["persistentVolumeClaim"]["claimName"]
            if await self._api.get("persistentvolumeclaims", name, self._namespace) is None:
                return None
            folder = self.folder / "claims" / name
            folder.mkdir(parents=True, exist_ok=True)
            return folder
        found = await self._api.get("secrets", volume["secret"]["secretName"], self._namespace)
        if found is None:
            return None
        content = {name: base64.b64decode(text) for name, text in found["data"].items()}
        return {item["path"]: content[item["key"]] for item in volume["secret"]["items"]}

    def _resolve(self) -> None:
        """Write the names of headless services into each pod's /etc/hosts."""
        lines = ["127.0.0.1 localhost"]
        for service in self._view.of("services"):
            wanted = service["spec"].get("selector", {}).items()
            for each in self.running.values():
                if wanted and wanted <= each.pod["metadata"]["labels"].items():
                    lines.append(f"{each.address} {service['metadata']['name']}.{self._namespace}.svc")
        for each in self.running.values():
            (each.folder / "hosts").write_text("\n".join(lines) + "\n")

    async def _tell(self, uid: str, each: PodProcesses) -> None:
        policy = each.pod["spec"]["restartPolicy"]
        for container in each.containers:
            container.look(policy)
        ready = all([await container.ready() for container in each.containers])
        status = each.status(ready=ready)
        if self._told.get(uid) != status:
            self._told[uid] = status
            await self._api.patch("pods", each.pod["metadata"]["name"], {"status": status}, self._namespace, "status")
