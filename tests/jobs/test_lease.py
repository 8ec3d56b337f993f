"""One leader at a time."""

import asyncio

import httpx2
import pytest
from lightkube import AsyncClient, KubeConfig

from kofn_jobs.operator import lease
from kofn_jobs.operator.lease import Leadership
from tests.jobs.lab import kubeconfig, lab


@pytest.mark.slow
def test_another_operator_leads_once_the_first_is_gone() -> None:
    async def course() -> None:
        async with lab() as made:
            client = AsyncClient(KubeConfig.from_dict(kubeconfig(made.url)))
            one, other = (Leadership(client, "default", name, lasts_s=1) for name in ("one", "other"))
            await one.acquire()
            keeping = asyncio.create_task(one.keep())
            waiting = asyncio.create_task(other.acquire())
            await asyncio.sleep(2.5)  # longer than the lease and the other operator's interval
            assert not waiting.done() and not keeping.done()
            keeping.cancel()
            await asyncio.wait_for(waiting, 10)
            assert await asyncio.wait_for(one.keep(), 10) is None  # it learns that it has lost the lease
            await client.close()

    asyncio.run(course())


def test_wait_for_the_lease_survives_a_busy_server(monkeypatch: pytest.MonkeyPatch) -> None:
    answers: list[bool | Exception] = [httpx2.ReadTimeout("busy"), False, True]

    async def answer(self: Leadership) -> bool:
        found = answers.pop(0)
        if isinstance(found, Exception):
            raise found
        return found

    monkeypatch.setattr(lease, "LOOK_S", 0)
    monkeypatch.setattr(Leadership, "_try", answer)
    asyncio.run(Leadership(None, "default", "one").acquire())
    assert not answers
