"""Committed output is that of p4c, of protoc for kofn/rpc/kofn.proto, and of the table of header fields."""

import importlib.util
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from kofn.host.wire import header_text
from kofn.host.wire.packet import HEADER_FIELDS

ROOT = Path(__file__).parents[1]

specification = importlib.util.spec_from_file_location("p4_build", ROOT / "p4src" / "build.py")
assert specification and specification.loader
p4_build = importlib.util.module_from_spec(specification)
specification.loader.exec_module(p4_build)


def test_p4_output_belongs_to_the_sources():
    stamp = json.loads(p4_build.STAMP.read_text())
    assert stamp["sources"] == p4_build.sources_hash(), "p4src/*.p4 changed after p4src/build: run `make p4`"
    assert stamp["outputs"] == p4_build.outputs_hash(), "p4src/build was edited: run `make p4`"
    assert stamp["p4c"].startswith("Version 1.")


@pytest.mark.skipif(shutil.which(p4_build.COMPILER) is None, reason="p4c-bm2-ss is not on the PATH")
def test_p4c_gives_the_committed_output(tmp_path, monkeypatch):
    if p4_build.compiler_version() != json.loads(p4_build.STAMP.read_text())["p4c"]:
        pytest.skip(f"another p4c than the one that made p4src/build: {p4_build.compiler_version()}")
    copy = shutil.copytree(p4_build.SOURCES, tmp_path / "p4src")
    monkeypatch.setattr(p4_build, "SOURCES", copy)
    p4_build.compile_program()
    for name in ("kofn.json", "kofn.p4info.txtpb"):
        assert (copy / "build" / name).read_bytes() == (p4_build.BUILD / name).read_bytes(), name


def test_make_p4_names_the_missing_p4c(tmp_path):
    command = [sys.executable, str(ROOT / "p4src" / "build.py")]
    result = subprocess.run(command, env={"PATH": str(tmp_path)}, capture_output=True, text=True, check=False)
    assert result.returncode == 2
    assert "p4c-bm2-ss is not on the PATH" in result.stderr
    assert "p4lang-p4c" in result.stderr


def test_stubs_belong_to_the_proto(tmp_path):
    outputs = [f"--{kind}={tmp_path}" for kind in ("python_out", "grpc_python_out", "mypy_out", "mypy_grpc_out")]
    plugins = [
        f"--plugin=protoc-gen-{name}={Path(sys.executable).parent / f'protoc-gen-{name}'}"
        for name in ("mypy", "mypy_grpc")
    ]
    command = [sys.executable, "-m", "grpc_tools.protoc", "-I.", *outputs, *plugins, "kofn/rpc/kofn.proto"]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    made = sorted((tmp_path / "kofn" / "rpc").iterdir())
    assert len(made) == 4
    for path in made:
        assert path.read_text() == (ROOT / "kofn" / "rpc" / path.name).read_text(), (
            f"{path.name} is stale: run `make proto`"
        )


def test_generated_header_files_match_the_fields():
    assert header_text.C_HEADER.read_text() == header_text.c_header(), (
        "host/wire/kofn_header.h is stale: run `make header`"
    )
    assert header_text.PROTOCOL.read_text() == header_text.protocol(), (
        "docs/reference/protocol.md is stale: run `make header`"
    )
    assert [*header_text.MEANINGS] == [name for name, _ in HEADER_FIELDS]
