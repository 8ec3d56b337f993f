"""The files applied to a cluster: generated from the code, complete, and the same in kustomize and Helm."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from kofn.cli.jobs import checked, load
from kofn_jobs.crd import definition
from kofn_jobs.kinds import KINDS
from kofn_jobs.manifests import SWITCH_IMAGE
from kofn_jobs.operator.handlers import SIMPLE
from kofn_jobs.operator.permissions import VERB
from kofn_jobs.request import TORCH_IMAGES, WORKER_IMAGE
from kofn_jobs.workloads import RUNTIME
from tests.jobs.published import faults, published
from tests.workspace import ROOT

DEPLOY = ROOT / "jobs" / "deploy"


def objects(path: Path) -> list[dict[str, Any]]:
    return [each for each in yaml.safe_load_all(path.read_text()) if each]


@pytest.mark.parametrize("path", ["base/crd.yaml", "chart/crds/crd.yaml"])
def test_crd_is_generated_from_the_code(path: str) -> None:
    assert objects(DEPLOY / path) == [definition()], f"{path} is stale: run `make crd`"


def schema() -> dict[str, Any]:
    return definition()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]


@pytest.mark.parametrize("path", sorted((ROOT / "examples" / "jobs").glob("*.yaml")), ids=lambda path: path.stem)
def test_examples_are_valid(path: Path) -> None:
    assert not faults(schema(), load(path))
    checked(load(path))


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({}, "'accelerators' is a required property"),
        ({"accelerators": 65}, "65 is greater than the maximum"),
        (
            {"accelerators": 3, "nodes": [{"name": "a", "accelerators": 3}] * 2},
            "nodes must name each node once",
        ),
        ({"accelerators": 3, "elastic": {"startWorkers": 4}}, "elastic.startWorkers must be at most accelerators"),
        ({"accelerators": 3, "cleanPodPolicy": "Some"}, "'Some' is not one of"),
        ({"accelerators": 3, "gpus": 3}, "'gpus' was unexpected"),
    ],
)
def test_crd_refuses_invalid_specs(spec: dict[str, Any], words: str) -> None:
    found = faults(schema(), {"metadata": {"name": "digits"}, "spec": spec})
    assert any(words in each for each in found), found


def test_crd_refuses_names_that_pods_cannot_have() -> None:
    for name, good in (("a" * 40, True), ("a" * 41, False), ("1a", False), ("a.b", False)):
        assert bool(faults(schema(), {"metadata": {"name": name}, "spec": {"accelerators": 3}})) is not good


def test_helm_chart_renders_to_the_kustomize_base() -> None:
    values = yaml.safe_load((DEPLOY / "chart" / "values.yaml").read_text())

    def value(found: re.Match[str]) -> str:
        return "kofn-system" if found[1] == ".Release.Namespace" else str(values[found[1].removeprefix(".Values.")])

    for name in ("rights.yaml", "operator.yaml"):
        text = re.sub(r"\{\{ (\S+) \}\}", value, (DEPLOY / "chart" / "templates" / name).read_text())
        assert list(yaml.safe_load_all(text)) == list(yaml.safe_load_all((DEPLOY / "base" / name).read_text()))


def test_runtime_is_valid_by_the_published_crd() -> None:
    (runtime,) = objects(DEPLOY / "base" / "runtime.yaml")
    assert runtime["metadata"]["name"] == RUNTIME
    assert not faults(published()["ClusterTrainingRuntime"]["schema"], runtime)


def rights(name: str) -> dict[str, set[str]]:
    """Return the verbs by resource."""
    (role,) = [
        each
        for each in objects(DEPLOY / "base" / "rights.yaml")
        if (each["kind"], each["metadata"]["name"]) == ("ClusterRole", name)
    ]
    return {resource: set(rule["verbs"]) for rule in role["rules"] for resource in rule["resources"]}


def test_operator_has_the_rights_it_uses() -> None:
    may = rights("kofn-operator")
    for plural in (*SIMPLE, *(kind.plural for kind in KINDS.values()), "pods"):
        assert {"get", "list", "watch", "create"} <= may[plural]
    assert {"delete"} <= may["pods"] & may["jobsets"] and "patch" in may["trainingrequests/status"]
    assert VERB in rights("kofn-trainer")["trainingrequests"] and "*" not in str(may)


CONTAINERS = sorted((DEPLOY / "containers").glob("*.Containerfile"))


@pytest.mark.parametrize("path", CONTAINERS, ids=lambda path: path.stem)
def test_containerfiles_pin_their_sources(path: Path) -> None:
    """This is the part of a linter that these files need; no image builder is installed here."""
    text = path.read_text().replace("\\\n", " ")
    lines = [line.split(maxsplit=1) for line in text.splitlines() if line and not line.startswith("#")]
    allowed = {"FROM", "RUN", "COPY", "ENV", "LABEL", "USER", "ENTRYPOINT", "CMD"}
    assert {word for word, *_ in lines} <= allowed and lines[0][0] == "FROM"
    assert all(re.search(r":[\w.-]+$", rest[0]) and ":latest" not in rest[0] for word, *rest in lines if word == "FROM")
    assert [rest for word, *rest in lines if word == "USER"]
    for word, rest in (line for line in lines if line[0] == "RUN"):
        assert word == "RUN" and ("pip install" not in rest or "--no-cache-dir" in rest)
        assert "apt-get install" not in rest or ("--no-install-recommends" in rest and "rm -rf /var/lib/apt" in rest)


def test_images_have_containerfiles_of_this_version() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    made = {f"kofn-{path.stem}:{version}" for path in CONTAINERS}
    assert {SWITCH_IMAGE, WORKER_IMAGE, *TORCH_IMAGES.values(), f"kofn-operator:{version}"} == made
