"""The operator with an API server: requests from their creation to their end."""

import asyncio
import itertools
import json
import os
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest
import yaml

from kofn_jobs.operator import handlers
from kofn_jobs.operator.observe import SeenNode, capacities
from kofn_jobs.split import Capacity
from tests.jobs.api_server import RefusedError
from tests.jobs.lab import Lab, kubeconfig, lab
from tests.ports import own_port

pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),  # a killed operator closes nothing
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

Course = Callable[[Lab], Awaitable[None]]


def run(course: Course, **options: Any) -> None:
    """Run a test with one operator."""

    async def whole() -> None:
        async with lab(**options) as made, made.operator():
            await course(made)

    asyncio.run(whole())


def left(made: Lab) -> list[str]:
    return [f"{each['kind']} {each['metadata']['name']}" for each in made.api.all("pods") + made.api.all("jobsets")]


def config(made: Lab, name: str) -> dict[str, str]:
    return made.api.objects["", "configmaps", "default", f"{name}-kofn"]["data"]


@pytest.mark.slow
def test_request_runs_to_its_end() -> None:
    seen = []

    async def course(made: Lab) -> None:
        made.ends = lambda name, attempt: ""
        await made.submit("digits", accelerators=15)
        await made.until(lambda: made.phase("digits") == "Running")
        seen.append(made.request("digits")["status"])
        assert json.loads(config(made, "digits")["nodes.json"]) == {"node-0": 10, "node-1": 5}
        made.ends = lambda name, attempt: "Completed"
        await made.until(lambda: made.phase("digits") == "Succeeded" and not left(made))
        seen.append(made.request("digits")["status"])
        await made.until(lambda: len(made.api.all("events")) >= 4)
        assert [each["reason"] for each in sorted(made.api.all("events"), key=version)] == [
            *("Preparing", "Starting", "Running", "Succeeded")
        ]
        print(dict(made.api.calls), made.api.writes)

    run(course)
    running, ended = seen
    assert [(part["node"], part["accelerators"]) for part in running["parts"]] == [("node-0", 10), ("node-1", 5)]
    assert (running["ready"], running["attempt"], running["requester"]) == ("15/15", 1, "ada")
    held = {each["type"]: each["status"] for each in ended["conditions"]}
    assert held == {"Accepted": "True", "Running": "False", "Complete": "True", "Failed": "False"}


def version(document: dict[str, Any]) -> int:
    return int(document["metadata"]["resourceVersion"])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("plural", "error"),
    [
        ("pods", RefusedError(403, "Forbidden", "violates PodSecurity")),
        ("pods", RefusedError(403, "Forbidden", "exceeded quota: compute")),
        ("jobsets", RefusedError(422, "Invalid", "admission webhook denied the request")),
        ("configmaps", RefusedError(404, "NotFound", "namespace ml was not found")),
    ],
)
def test_refusal_of_the_cluster_reaches_the_request(plural: str, error: RefusedError) -> None:
    async def course(made: Lab) -> None:
        create = made.api.create

        async def refuses(group: str, version: str, what: str, namespace: str, document: dict[str, Any]) -> Any:
            if what == plural:
                raise error
            return await create(group, version, what, namespace, document)

        made.api.create = refuses  # type: ignore[assignment,method-assign]
        await made.submit("digits", backoffLimit=1)
        await made.until(lambda: made.phase("digits") == "Failed")
        message = made.request("digits")["status"]["message"]
        assert message.startswith("attempt 2: the cluster refused") and str(error) in message
        await made.until(lambda: "Failed" in {each["reason"] for each in made.api.all("events")})
        told = {each["reason"]: each["message"] for each in made.api.all("events") if each["type"] == "Warning"}
        assert str(error) in told["Retrying"] and str(error) in told["Failed"]
        await made.until(lambda: not left(made))
        assert made.api.calls[f"POST {plural}"] == 2 and made.api.calls["POST jobsets"] == 2 * (plural == "jobsets")

    run(course)


PULLING = {"name": "switch", "image": "kofn:9", "state": {"waiting": {"reason": "ErrImagePull"}}}
BACKING_OFF = {**PULLING, "state": {"waiting": {"reason": "ImagePullBackOff"}}}
NO_ROOM = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/2 nodes are available"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("statuses", "words"),
    [
        (({"containerStatuses": [PULLING]}, {"containerStatuses": [BACKING_OFF]}), "ImagePullBackOff of kofn:9"),
        (({"conditions": [NO_ROOM]},), "Unschedulable: 0/2 nodes are available"),
    ],
)
def test_pod_that_cannot_start_is_reported_and_fails_in_time(
    statuses: tuple[dict[str, Any], ...], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns = itertools.cycle(statuses)

    async def never(made: Lab, pod: dict[str, Any]) -> None:
        key = ("", "pods", "default", pod["metadata"]["name"])
        await made.api.change(key, {"status": {"phase": "Pending", "conditions": [], **next(turns)}})

    monkeypatch.setattr(Lab, "_ready", never)

    async def course(made: Lab) -> None:
        await made.submit("digits", activeDeadlineSeconds=3)
        trouble = f"digits-1-switch: {words}"
        await made.until(lambda: made.request("digits").get("status", {}).get("message") == trouble)
        assert made.phase("digits") == "Preparing"
        await made.until(lambda: made.phase("digits") == "Failed" and not left(made))
        assert trouble in made.request("digits")["status"]["message"]
        warned = [each["message"] for each in made.api.all("events") if each["type"] == "Warning"]
        assert sorted(warned) == [trouble, f"spec.activeDeadlineSeconds is 3, and Preparing was: {trouble}"]

    run(course)


@pytest.mark.slow
def test_refused_job_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handlers, "LOOK_S", 0.2)

    async def nothing(made: Lab, job_set: dict[str, Any], pods: list[dict[str, Any]]) -> None:
        """Create no pods for the Job."""

    monkeypatch.setattr(Lab, "_play", nothing)

    async def course(made: Lab) -> None:
        await made.submit("digits")
        for job, reason in (
            ("digits-1-node-0", "FailedCreate"),
            ("digits-2-x", "FailedCreate"),
            ("digits-1-a", "Done"),
        ):
            await made.api.create(
                *("", "v1", "events", "default"),
                {
                    "metadata": {"name": job},
                    "reason": reason,
                    "message": f"{reason}: exceeded quota",
                    "involvedObject": {"kind": "Job", "namespace": "default", "name": job},
                },
            )
        words = "digits-1-node-0: FailedCreate: exceeded quota"
        await made.until(lambda: made.request("digits").get("status", {}).get("message") == words)

    run(course)


@pytest.mark.slow
def test_passed_deadlines_leave_the_operator_serving() -> None:
    async def course(made: Lab) -> None:
        made.ends = lambda name, attempt: "" if name == "late" else "Completed"
        await made.submit("early", activeDeadlineSeconds=2)
        await made.submit("late", activeDeadlineSeconds=2, cleanPodPolicy="Running")
        await made.until(lambda: (made.phase("early"), made.phase("late")) == ("Succeeded", "Failed"))
        await made.submit("next")
        await made.until(lambda: made.phase("next") == "Succeeded" and not left(made))

    run(course)


@pytest.mark.parametrize(
    ("quantity", "whole"), [("4", 4), ("1k", 1000), ("2e1", 20), ("4.5", 4), ("3920m", 3), ("1Ki", 1024)]
)
def test_quantity_of_accelerators_is_read(quantity: str, whole: int) -> None:
    nodes = [SeenNode("a", {"x/y": quantity}), SeenNode("b", {"x/y": "0"}), SeenNode("c", {})]
    assert capacities(nodes, "x/y") == (Capacity("a", whole),)


@pytest.mark.slow
def test_failed_attempts_are_repeated_and_then_given_up() -> None:
    async def course(made: Lab) -> None:
        made.ends = lambda name, attempt: "Failed" if name == "never" or attempt < 3 else "Completed"
        await made.submit("third", backoffLimit=2)
        await made.submit("never", backoffLimit=1)
        await made.until(
            lambda: (made.phase("third"), made.phase("never")) == ("Succeeded", "Failed") and not left(made)
        )
        assert made.request("third")["status"]["attempt"] == 3
        words = made.request("never")["status"]["message"]
        assert words == "attempt 2: as it was played; spec.backoffLimit is 1"

    run(course)


@pytest.mark.slow
def test_permission_to_train_is_asked_once() -> None:
    async def course(made: Lab) -> None:
        for number in range(3):
            await made.submit(f"hers-{number}")
        await made.submit("his", requester="eve")
        await made.until(lambda: made.phase("his") == "Denied")
        await made.until(lambda: all(made.phase(f"hers-{number}") == "Succeeded" for number in range(3)))
        assert "eve may not train in default" in made.request("his")["status"]["message"]
        await made.submit("hers-again")
        await made.until(lambda: made.phase("hers-again") == "Succeeded")
        # the first three requests may ask at the same moment
        assert 2 <= made.api.calls["POST subjectaccessreviews"] <= 4
        assert not [each for each in made.api.all("configmaps") if "his" in each["metadata"]["name"]]

    run(course)


@pytest.mark.slow
def test_unknown_user_is_denied_and_impossible_request_refused() -> None:
    async def course(made: Lab) -> None:
        await made.submit("nobodys", requester="")
        await made.submit("huge", accelerators=25)
        await made.submit("wrong", config="[job]\nwords = 0\n")
        await made.until(lambda: {made.phase(name) for name in ("huge", "wrong")} == {"Refused"})
        await made.until(lambda: made.phase("nobodys") == "Denied")
        assert made.request("huge")["status"]["message"] == "25 accelerators: 10 + 10 = 20 are there"
        assert "spec.config: job.words" in made.request("wrong")["status"]["message"]
        assert made.api.calls["POST subjectaccessreviews"] <= 2

    run(course)


@pytest.mark.slow
def test_name_in_use_is_refused() -> None:
    async def course(made: Lab) -> None:
        other = {"metadata": {"name": "digits-kofn"}, "data": {}}
        await made.api.create("", "v1", "configmaps", "default", other)
        await made.submit("digits")
        with pytest.raises(RefusedError, match="already exists"):
            await made.submit("digits")
        await made.until(lambda: made.phase("digits") == "Refused")
        assert made.request("digits")["status"]["message"].startswith("ConfigMap digits-kofn exists and belongs")
        await made.until(lambda: not left(made))

    run(course)


@pytest.mark.slow
def test_remains_of_an_earlier_request_are_awaited() -> None:
    async def course(made: Lab) -> None:
        owner = {"kind": "TrainingRequest", "name": "digits", "uid": "earlier", "apiVersion": "kofn.dev/v1alpha1"}
        labels = {"kofn.dev/request": "digits", "kofn.dev/uid": "earlier"}
        meta = {"name": "digits-kofn", "ownerReferences": [owner], "labels": labels}
        await made.api.create("", "v1", "configmaps", "default", {"metadata": meta, "data": {}})
        await made.submit("digits")
        await made.until(lambda: len(made.api.all("jobsets")) == 1)
        await asyncio.sleep(0.5)
        assert made.phase("digits") == "Preparing"
        await made.api.delete(("", "configmaps", "default", "digits-kofn"))
        await made.until(lambda: made.phase("digits") == "Succeeded")

    run(course)


@pytest.mark.slow
def test_deleted_request_takes_its_objects_with_it() -> None:
    async def course(made: Lab) -> None:
        made.ends = lambda name, attempt: ""
        await made.submit("digits")
        await made.until(lambda: made.phase("digits") == "Running")
        await made.api.delete(("kofn.dev", "trainingrequests", "default", "digits"))
        await made.until(lambda: not made.api.all("trainingrequests"))
        await made.until(lambda: not left(made) and not made.api.all("configmaps") and not made.api.all("secrets"))

    run(course)


def test_request_cannot_be_changed() -> None:
    async def course(made: Lab) -> None:
        await made.submit("digits")
        with pytest.raises(RefusedError, match="a request cannot be changed"):
            await made.api.change(("kofn.dev", "trainingrequests", "default", "digits"), {"spec": {"accelerators": 4}})

    run(course)


async def course_with_deaths(writes: int) -> tuple[str, list[str], int]:
    """Run operators one after another, each as if killed after `writes` writes; return phase, remains and deaths."""
    async with lab() as made:
        made.ends = lambda name, attempt: "Failed" if attempt == 1 else "Completed"
        await made.submit("digits", backoffLimit=1)
        for deaths in range(100):
            made.api.writes_most = made.api.writes + writes
            async with made.operator():
                try:
                    await made.until(
                        lambda: (
                            (made.phase("digits") == "Succeeded" and not left(made))
                            or made.api.writes >= made.api.writes_most
                        )
                    )
                except TimeoutError:
                    raise AssertionError(f"nothing moves in phase {made.phase('digits')}") from None
            made.api.writes_most = made.api.writes
            if made.phase("digits") == "Succeeded" and not left(made):
                return made.phase("digits"), left(made), deaths
    raise AssertionError("it never ends")


@pytest.mark.slow
def test_operator_killed_after_every_sixth_write_finishes_the_request() -> None:
    """Some writes are kopf's own, and one asks for a permission that is kept in memory."""
    phase, rest, deaths = asyncio.run(course_with_deaths(6))
    assert (phase, rest) == ("Succeeded", []) and deaths > 2


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize("writes", [4, 5, 7])
def test_operators_killed_after_more_writes_finish_the_request(writes: int) -> None:
    """With three writes no operator gets anywhere: two register the webhooks, and one asks for the permission."""
    phase, rest, deaths = asyncio.run(course_with_deaths(writes))
    assert (phase, rest) == ("Succeeded", []) and deaths > 2


@pytest.mark.long
def test_many_requests_at_once_succeed() -> None:
    """All succeed, and the number of calls a request is bounded."""
    count = 40

    async def course(made: Lab) -> None:
        for number in range(count):
            await made.submit(f"digits-{number}")
        names = [f"digits-{number}" for number in range(count)]
        await made.until(lambda: all(made.phase(name) == "Succeeded" for name in names) and not left(made), 60)
        assert len(made.api.all("configmaps")) == count
        calls = made.api.writes / count
        assert calls < 25, dict(made.api.calls)

    run(course)


async def ended(process: asyncio.subprocess.Process) -> str:
    process.terminate()
    _, words = await process.communicate()
    return words.decode()


@pytest.mark.slow
def test_operator_runs_as_a_process(tmp_path: Path) -> None:
    """It has its own lease, metrics and login."""

    async def course(port: int, health: int) -> None:
        async with lab() as made:
            path = tmp_path / "kubeconfig"
            path.write_text(yaml.safe_dump(kubeconfig(made.url)))
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "kofn_jobs.operator"),
                *("--metrics-port", str(port), "--health-port", str(health)),
                env={**os.environ, "KUBECONFIG": str(path)},
                stderr=asyncio.subprocess.PIPE,
            )
            await made.submit("digits")
            try:
                await made.until(lambda: made.phase("digits") == "Succeeded" and not left(made), 40)
                async with httpx2.AsyncClient() as client:
                    told = (await client.get(f"http://127.0.0.1:{port}/metrics")).text
            finally:
                words = await ended(process)
            assert 'kofn_jobs_phases_total{phase="Succeeded"} 1.0' in told, words
            (lease,) = made.api.all("leases")
            assert lease["metadata"]["namespace"] == "kofn-system" and "leads" in words

    with own_port() as port, own_port() as health:
        asyncio.run(course(port, health))
