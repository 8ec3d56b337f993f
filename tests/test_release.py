"""Every place that names kofn's version names the same one."""

import re
import tomllib

import pytest

from tests.workspace import ROOT

VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]

PLACES = {
    "pyproject.toml": rf'^version = "{VERSION}"$',
    "*/pyproject.toml": rf'^version = "{VERSION}"$',
    "CITATION.cff": rf"^version: {VERSION}$",
    "CHANGELOG.md": rf"^## {VERSION} \(\d{{4}}-\d\d-\d\d\)$",
    "jobs/deploy/containers/*.Containerfile": rf'image\.version="{VERSION}"',
    "jobs/deploy/chart/Chart.yaml": rf"^version: {VERSION}\nappVersion: {VERSION}$",
    "jobs/deploy/chart/values.yaml": rf"kofn-operator:{VERSION}$",
    "jobs/deploy/base/kustomization.yaml": rf"newTag: {VERSION}$",
    "jobs/deploy/base/operator.yaml": rf"image: kofn-operator:{VERSION}$",
    "jobs/deploy/base/runtime.yaml": rf"image: kofn-worker:{VERSION}$",
    "docs/howto/kubernetes.md": rf"kofn-\$name:{VERSION}",
}
"""Files, and the text that each must have."""

OTHER = re.compile(
    r"(?:^version = \"|kofn[\w-]*(?:\[[\w,]*\])?==|kofn-[\w$]+:|image\.version=\")(\d+\.\d+\.\d+)", re.MULTILINE
)


@pytest.mark.parametrize("pattern", PLACES)
def test_version_is_the_release(pattern: str) -> None:
    files = [*ROOT.glob(pattern)]
    assert files
    for path in files:
        text = path.read_text()
        assert re.search(PLACES[pattern], text, re.MULTILINE), path
        assert {*OTHER.findall(text)} <= {VERSION}, path
