"""The first run on a machine compiles everything once, before a worker starts."""

import os
from pathlib import Path

import pytest

from tests.common.nativebuild.compiler import NotingCompiler
from tests.run.real_run import RealRun

pytestmark = [
    pytest.mark.root,
    pytest.mark.slow,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: network namespaces"),
]


@pytest.mark.long
def test_first_run_compiles_each_library_once_and_reports_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache, compiler = tmp_path / "cache", NotingCompiler(tmp_path)
    monkeypatch.setenv("KOFN_CACHE", str(cache))
    monkeypatch.setenv("CC", compiler.command)
    with RealRun(tmp_path, "--trial", "all") as run:
        run.until(lambda: "compiling switch and workers to native code" in run.text(), "the compiler's turn")
        assert not list(run.out.glob("*/logs/worker-*")), "the build must end before a worker starts"
        compiler.go()
        assert run.wait() == 0, run.text()
    assert compiler.linked == len(list(cache.iterdir())) == 4, (
        "each library must be built once: worker, codecs, switch, program"
    )
    assert "absent" not in run.text()
