"""The admission webhook as an API server calls it: over TLS, with the announced authority."""

import asyncio
import base64
import json
import ssl
from pathlib import Path
from typing import Any

import httpx2
import pytest

from kofn_jobs.operator.operate import webhook_server
from tests.jobs.lab import Lab, lab
from tests.ports import own_port

REQUEST = {
    "apiVersion": "kofn.dev/v1alpha1",
    "kind": "TrainingRequest",
    "metadata": {"name": "digits", "namespace": "default", "annotations": {"kofn.dev/requester": "root"}},
    "spec": {"accelerators": 3},
}


def review(document: dict[str, Any], user: str) -> dict[str, Any]:
    kind = {"group": "kofn.dev", "version": "v1alpha1", "kind": "TrainingRequest"}
    resource = {"group": "kofn.dev", "version": "v1alpha1", "resource": "trainingrequests"}
    asked = {
        "uid": "1",
        "kind": kind,
        "resource": resource,
        "requestKind": kind,
        "requestResource": resource,
        "name": "digits",
        "namespace": "default",
        "operation": "CREATE",
        "userInfo": {
            "username": user,
            "uid": "7",
            "groups": ["lab", "system:authenticated"],
            "extra": {"project": ["p4"]},
        },
        "object": document,
        "oldObject": None,
        "dryRun": False,
        "options": {},
    }
    return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": asked}


async def told(made: Lab, plural: str) -> dict[str, Any]:
    """Return the webhook that the operator has announced to the API server."""
    key = ("admissionregistration.k8s.io", plural, "", "kofn.dev")
    await made.until(lambda: bool(made.api.objects.get(key, {}).get("webhooks")))
    (webhook,) = made.api.objects[key]["webhooks"]
    return webhook


async def call(webhook: dict[str, Any], document: dict[str, Any]) -> dict[str, Any]:
    authority = base64.b64decode(webhook["clientConfig"]["caBundle"]).decode()
    async with httpx2.AsyncClient(verify=ssl.create_default_context(cadata=authority)) as client:
        answer = await client.post(webhook["clientConfig"]["url"], json=review(document, "ada"))
    return answer.json()["response"]


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.slow
def test_webhook_notes_the_requester_and_refuses_impossible_requests(tmp_path: Path) -> None:
    async def course(port: int) -> None:
        server = webhook_server("localhost", port, tmp_path)
        async with lab() as made, made.operator(webhook=server):
            mutating = await told(made, "mutatingwebhookconfigurations")
            assert mutating["failurePolicy"] == "Fail"
            answer = await call(mutating, REQUEST)
            patch = {each["path"]: each["value"] for each in json.loads(base64.b64decode(answer["patch"]))}
            flat = json.dumps(patch)
            assert answer["allowed"] and '"ada"' in flat and "lab,system:authenticated" in flat and "p4" in flat
            validating = await told(made, "validatingwebhookconfigurations")
            assert (await call(validating, REQUEST))["allowed"]
            wrong = REQUEST | {"spec": {"accelerators": 3, "config": "[job]\nwords = 0\n"}}
            refused = await call(validating, wrong)
            assert not refused["allowed"] and "spec.config: job.words" in refused["status"]["message"]

    with own_port() as port:
        asyncio.run(course(port))
