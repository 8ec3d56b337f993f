"""The samples of links and slots."""

import asyncio
import contextlib
import errno
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kofn.run import sampler
from kofn.run.sampler import Sampler
from kofn_common.config.network import NetworkSection


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENOSPC])
def test_sampler_outlives_a_time_without_files_or_space(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sampler, "LINKS_S", 0.001)
    path, refused = tmp_path / "samples.jsonl", list[str]()

    def opened(mode: str) -> Any:
        if len(refused) < 3:
            refused.append(mode)
            raise OSError(number, os.strerror(number))
        return path.open(mode)

    training: Any = SimpleNamespace(
        folder=SimpleNamespace(samples=SimpleNamespace(open=opened)), programs=SimpleNamespace(nodes=["h1"])
    )
    network: Any = SimpleNamespace(link_bytes=lambda: {"h1": (1, 2)}, ready=SimpleNamespace(uplinks=()))

    async def course() -> None:
        sampling = asyncio.create_task(Sampler(network, NetworkSection(), [training], lambda: False).run())
        async with asyncio.timeout(20):
            while not sampling.done() and not path.exists():
                await asyncio.sleep(0.001)
        sampling.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await sampling

    asyncio.run(course())
    assert len(refused) == 3
