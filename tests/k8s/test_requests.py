"""The operator with the API server of KUBECONFIG: its answers, its state, its refusals, and the course of requests.

`make test-k8s` runs this; an API server without nodes suffices.
"""

import json
import os
from collections import Counter
from pathlib import Path

import pytest

from tests.k8s.api import RefusedError
from tests.k8s.suite import CEL, Suite, run

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(1800),
    pytest.mark.skipif("KUBECONFIG" not in os.environ, reason="needs a cluster: KUBECONFIG names none"),
]


def test_request_runs_to_its_end(tmp_path: Path) -> None:
    async def course(made: Suite) -> None:
        async with made.acted() as kubelet, made.operator():
            kubelet.ends = lambda name, attempt: ""
            await made.submit("digits", accelerators=15)
            await made.until(lambda: made.phase("digits") == "Running")
            status = made.status("digits")
            assert [part["accelerators"] for part in status["parts"]] == [10, 5]
            assert (status["ready"], status["requester"]) == ("15/15", "ada")
            config = made.players.view.find("configmaps", "digits-kofn")
            assert config is not None
            assert list(json.loads(config["data"]["nodes.json"]).items()) == [(made.nodes[0], 10), (made.nodes[1], 5)]
            where = Counter(
                pod["spec"]["nodeName"]
                for pod in made.players.view.of("pods")
                if pod["metadata"]["labels"]["kofn.dev/role"] == "worker"
            )
            assert where == dict(zip(made.nodes, (10, 5), strict=True))
            with pytest.raises(RefusedError, match="already exists"):
                await made.submit("digits")
            kubelet.ends = lambda name, attempt: "Succeeded"
            await made.until(lambda: made.phase("digits") == "Succeeded" and not made.left())
            held = {each["type"]: each["status"] for each in made.status("digits")["conditions"]}
            assert held == {"Accepted": "True", "Running": "False", "Complete": "True", "Failed": "False"}
            await made.api.delete("trainingrequests", "digits", made.namespace)
            await made.until(lambda: not made.request("digits") and not made.players.view.of("secrets"))

    run(course, tmp_path)


def test_all_workers_start_together(tmp_path: Path) -> None:
    """They start only when the last worker and the switch are ready."""

    async def course(made: Suite) -> None:
        async with made.acted(), made.operator() as gateway:
            await made.submit("digits")
            await made.until(lambda: made.phase("digits") == "Succeeded" and not made.left())
            order = [gateway.writes.index(step) for step in ("POST pods", "POST jobsets", "PATCH pods")]
            assert order == sorted(order) and gateway.writes.count("PATCH pods") == 3
            between = gateway.writes[order[1] : order[2]]
            assert "PATCH trainingrequests/status" in between  # Starting: all pods are ready

    run(course, tmp_path)


def test_requests_are_refused_denied_retried_and_given_up(tmp_path: Path) -> None:
    def end(name: str, attempt: int) -> str:
        return "Failed" if name == "never" or (name == "third" and attempt < 3) else "Succeeded"

    async def course(made: Suite) -> None:
        await made.api.create("configmaps", {"metadata": {"name": "taken-kofn"}}, made.namespace)
        async with made.acted() as kubelet, made.operator() as gateway:
            kubelet.ends = end
            await made.submit("his", requester="eve")
            await made.submit("nobodys", requester="")
            await made.submit("huge", accelerators=25)
            await made.submit("taken")
            await made.submit("third", backoffLimit=2, cleanPodPolicy="Running")
            await made.submit("never", backoffLimit=1)
            names = ("his", "nobodys", "huge", "taken", "third", "never")
            ended = ["Denied", "Denied", "Refused", "Refused", "Succeeded", "Failed"]
            await made.until(lambda: [made.phase(name) for name in names] == ended)
            assert f"eve may not train in {made.namespace}" in made.status("his")["message"]
            assert made.status("huge")["message"] == "25 accelerators: 10 + 10 = 20 are there"
            assert made.status("taken")["message"].startswith("ConfigMap taken-kofn exists and belongs")
            assert made.status("third")["attempt"] == 3
            assert made.status("never")["message"].startswith("attempt 2: ")
            assert made.status("never")["message"].endswith("; spec.backoffLimit is 1")
            # the policy removes all of the first, and what still runs of the second
            await made.until(lambda: not made.left("never") and "third-3-switch" not in made.left("third"))
            assert len(made.left("third")) == 4  # a workload and three ended workers
            # the permissions of ada and of eve were asked for once each
            assert gateway.calls["POST subjectaccessreviews"] == 2

    run(course, tmp_path)


def test_server_checks_a_requests_fields(tmp_path: Path) -> None:
    async def course(made: Suite) -> None:
        with pytest.raises(RefusedError, match="accelerators"):
            await made.submit("none", accelerators=0)
        with pytest.raises(RefusedError, match="workload"):
            await made.submit("other", workload="Deployment")
        if made.minor < CEL:
            pytest.skip(f"rules in CEL: the server is Kubernetes 1.{made.minor}, they are there from 1.{CEL} on")
        await made.submit("digits")
        with pytest.raises(RefusedError, match="a request cannot be changed"):
            await made.api.ask(
                "PATCH",
                f"/apis/kofn.dev/v1alpha1/namespaces/{made.namespace}/trainingrequests/digits",
                {"spec": {"accelerators": 4}},
                "application/merge-patch+json",
            )

    run(course, tmp_path)


@pytest.mark.skipif(
    "KOFN_WEBHOOK_HOST" not in os.environ, reason="KOFN_WEBHOOK_HOST: this machine's name for the API server"
)
def test_requester_is_the_servers_user(tmp_path: Path) -> None:
    """The admission webhook notes it over TLS, whatever the request claims."""

    async def course(made: Suite) -> None:
        host = os.environ["KOFN_WEBHOOK_HOST"]
        role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": f"{made.namespace}-kofn-writer"}
        rule = {"apiGroups": ["kofn.dev"], "resources": ["trainingrequests"], "verbs": ["create"]}
        await made.api.create("clusterroles", {"metadata": {"name": role["name"]}, "rules": [rule]})
        people = [{"kind": "User", "name": name, "apiGroup": role["apiGroup"]} for name in ("ada", "eve")]
        binding = {"metadata": {"name": "writers"}, "roleRef": role, "subjects": people}
        await made.api.create("rolebindings", binding, made.namespace)
        try:
            async with made.acted(), made.operator("--webhook-host", host, "--webhook-port", "19443"):
                await made.until_webhook()
                await made.submit("hers", user="ada")
                await made.submit("his", user="eve")
                with pytest.raises(RefusedError, match=r"spec\.config: job\.words"):
                    await made.submit("wrong", user="ada", config="[job]\nwords = 0\n")
                await made.until(lambda: (made.phase("hers"), made.phase("his")) == ("Succeeded", "Denied"))
                assert (made.status("hers")["requester"], made.status("his")["requester"]) == ("ada", "eve")
        finally:
            await made.api.delete("clusterroles", role["name"])

    run(course, tmp_path)


EVERY_STEP = Counter(
    {
        "POST configmaps": 1,
        "POST secrets": 1,
        "POST services": 1,
        "POST pods": 2,  # one for each attempt
        "POST jobsets": 2,
        "PATCH pods": 6,
        "DELETE pods": 2,
        "DELETE jobsets": 2,
    }
)


def test_operator_killed_after_every_write_finishes_the_request(tmp_path: Path) -> None:
    """One operator lives for each write, through a failing attempt and a successful one: no step is
    lost or repeated.
    """
    steps: list[str] = []

    async def course(made: Suite) -> None:
        async with made.acted() as kubelet:
            kubelet.ends = lambda name, attempt: "Failed" if attempt == 1 else "Succeeded"
            await made.submit("digits", backoffLimit=1)
            while not _over(made):
                assert len(steps) < 60, steps
                async with made.operator(dies_after=1) as gateway:
                    await made.until(lambda: bool(gateway.writes) or _over(made))
                    steps.extend(gateway.writes[:1])
            assert made.status("digits")["attempt"] == 2

    run(course, tmp_path)
    print(f"{len(steps)} writes, a death after each: {' | '.join(steps)}")
    counted = Counter(steps)
    assert {step: counted[step] for step in EVERY_STEP} == EVERY_STEP
    assert counted["PATCH trainingrequests/status"] >= 8


def _over(made: Suite) -> bool:
    return made.phase("digits") == "Succeeded" and not made.left()


def test_many_requests_at_once_succeed(tmp_path: Path) -> None:
    """All succeed, and the number of calls a request is printed. KOFN_REQUESTS: the number of requests."""
    count = int(os.environ.get("KOFN_REQUESTS", "200"))

    async def course(made: Suite) -> None:
        async with made.acted(), made.operator() as gateway:
            names = [f"digits-{number}" for number in range(count)]
            for name in names:
                await made.submit(name)
            await made.until(lambda: all(made.phase(name) == "Succeeded" for name in names) and not made.left(), 1500)
            assert {made.status(name)["attempt"] for name in names} == {1}
            assert len(made.players.view.of("configmaps")) >= count
            calls = gateway.calls
            asked = sum(number for call, number in calls.items() if "events" not in call and "leases" not in call)
            print(f"{count} requests: {asked / count:.1f} calls a request, events and lease apart: {dict(calls)}")
            assert asked / count < 22, calls

    run(course, tmp_path, accelerators=3 * count)
