"""Two folders of certificates, made once: our own, and foreign ones."""

from pathlib import Path

import pytest

from kofn_common.rpc.certificates import make_certificates


@pytest.fixture(scope="session")
def own(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("certs") / "own"
    make_certificates(folder, {1: 3, 2: 1})
    return folder


@pytest.fixture(scope="session")
def foreign(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("certs") / "foreign"
    make_certificates(folder, {1: 3})
    return folder
