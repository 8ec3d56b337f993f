"""Committed output is that of p4c, of protoc, and of the table of header fields."""

import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from kofn_common.config.errors import ConfigError
from kofn_common.nativebuild import struct_text
from kofn_common.wire import header_text
from kofn_common.wire.packet import HEADER_FIELDS
from kofn_controller.p4runtime import p4c
from tests.common.nativebuild.struct_layout import classes_of, compiled_layout, python_layout

ROOT = Path(__file__).parents[1]

PROGRAMS = [ROOT / "p4src" / "kofn.p4", *sorted((ROOT / "examples" / "protocols").glob("*.p4"))]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: path.stem)
def test_p4_output_belongs_to_the_sources(program: Path) -> None:
    stamp = p4c.Stamp.read(program)
    assert stamp is not None
    assert stamp.sources == p4c.sources_hash(program), "a P4 source changed after its output: run `make p4`"
    assert stamp.outputs == p4c.outputs_hash(program), "p4c's output was edited: run `make p4`"
    assert stamp.p4c.startswith("Version 1.")


@pytest.mark.skipif(shutil.which(p4c.COMPILER) is None, reason="p4c-bm2-ss is not on the PATH")
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: path.stem)
def test_p4c_gives_the_committed_output(program: Path, tmp_path: Path) -> None:
    stamp, version = p4c.Stamp.read(program), p4c.compiler_version()
    if stamp is None or version != stamp.p4c:
        pytest.skip(f"another p4c than the one that made the committed output: {version}")
    copy = shutil.copytree(program.parent, tmp_path / "a folder")
    assert p4c.compile_program(copy / program.name) == stamp


@pytest.mark.skipif(shutil.which(p4c.COMPILER) is None, reason="p4c-bm2-ss is not on the PATH")
def test_source_that_cannot_be_preprocessed_stays(tmp_path: Path) -> None:
    """p4c removes its input then."""
    source = tmp_path / "mine.p4"
    source.write_text('#include "missing.p4"\n')
    with pytest.raises(ConfigError, match="p4c refuses it"):
        p4c.compile_program(source)
    assert source.exists()


def test_source_that_an_included_one_includes_counts(tmp_path: Path) -> None:
    for name, text in {"mine.p4": '#include "a.p4"', "a.p4": '#include "b.p4"', "b.p4": ""}.items():
        (tmp_path / name).write_text(text)
    before = p4c.sources_hash(tmp_path / "mine.p4")
    (tmp_path / "b.p4").write_text("// more")
    assert p4c.sources_hash(tmp_path / "mine.p4") != before


def test_make_p4_names_the_missing_p4c(tmp_path: Path) -> None:
    command = [sys.executable, "-m", p4c.__name__, str(PROGRAMS[0])]
    result = subprocess.run(command, env={"PATH": str(tmp_path)}, capture_output=True, text=True, check=False)
    assert result.returncode == 2
    assert "p4c-bm2-ss must be on the PATH" in result.stderr
    assert "p4lang-p4c" in result.stderr


@pytest.mark.slow
def test_stubs_belong_to_the_proto(tmp_path):
    pytest.importorskip("grpc_tools")
    outputs = [f"--{kind}={tmp_path}" for kind in ("python_out", "grpc_python_out", "mypy_out", "mypy_grpc_out")]
    plugins = [
        f"--plugin=protoc-gen-{name}={Path(sys.executable).parent / f'protoc-gen-{name}'}"
        for name in ("mypy", "mypy_grpc")
    ]
    command = [
        sys.executable,
        "-m",
        "grpc_tools.protoc",
        "-Icommon",
        *outputs,
        *plugins,
        "common/kofn_common/rpc/kofn.proto",
    ]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    made = sorted((tmp_path / "kofn_common" / "rpc").iterdir())
    assert len(made) == 4
    for path in made:
        assert path.read_text() == (ROOT / "common" / "kofn_common" / "rpc" / path.name).read_text(), (
            f"{path.name} is stale: run `make proto`"
        )


def test_generated_header_files_match_the_fields():
    assert header_text.C_HEADER.read_text() == header_text.c_header(), (
        "common/kofn_common/wire/kofn_header.h is stale: run `make header`"
    )
    assert header_text.P4_SIZES.read_text() == header_text.p4_sizes(), "p4src/sizes.p4 is stale: run `make header`"
    assert header_text.PROTOCOL.read_text() == header_text.protocol(), (
        "docs/reference/protocol.md is stale: run `make header`"
    )
    assert [*header_text.MEANINGS] == [name for name, _ in HEADER_FIELDS]


@pytest.mark.parametrize("output", struct_text.OUTPUTS, ids=lambda output: output.path.parent.name)
@pytest.mark.slow
def test_generated_structs_match_the_c_headers(output: struct_text.Output) -> None:
    assert output.path.read_text() == struct_text.module_text(output), f"{output.path} is stale: run `make header`"


@pytest.mark.parametrize("output", struct_text.OUTPUTS, ids=lambda output: output.path.parent.name)
def test_generated_structs_have_the_compilers_layout(output: struct_text.Output, tmp_path: Path) -> None:
    classes = classes_of(runpy.run_path(str(output.path)), output)
    assert compiled_layout(tmp_path, output, classes) == python_layout(output, classes)
