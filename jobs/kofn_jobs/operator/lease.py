"""One operator at a time: the holder of the Lease `kofn-operator`.

The holder renews the Lease. A holder that cannot renew the Lease for the Lease's duration ends. So two operators can
act at once only for as long as their clocks differ. (Two operators at once do no harm: tests/jobs/test_lifecycle.py.)
"""

import asyncio
import datetime
import logging
from typing import Any

import httpx2
from lightkube.core.exceptions import ApiError
from lightkube.models.coordination_v1 import LeaseSpec
from lightkube.models.meta_v1 import ObjectMeta

from kofn_jobs.api import CONFLICT, NOT_FOUND, Lease

_LOG = logging.getLogger(__name__)

NAME = "kofn-operator"
LASTS_S = 15
RENEW_S = 5.0
LOOK_S = 2.0


class Leadership:
    """The leadership of this `identity`; `client` is lightkube's."""

    def __init__(self, client: Any, namespace: str, identity: str, lasts_s: int = LASTS_S) -> None:
        self._client, self._namespace, self._identity, self._lasts_s = client, namespace, identity, lasts_s

    async def acquire(self) -> None:
        """Wait until no other operator holds the Lease, and take it."""
        while not await self._try_patiently():
            await asyncio.sleep(LOOK_S)
        _LOG.info("%s leads", self._identity)

    async def keep(self) -> None:
        """Renew the Lease; return when the Lease is lost."""
        loop = asyncio.get_running_loop()
        until = loop.time() + self._lasts_s
        while loop.time() < until:
            await asyncio.sleep(min(RENEW_S, self._lasts_s / 3))
            try:
                if not await self._try():
                    break
                until = loop.time() + self._lasts_s
            except httpx2.HTTPError as error:
                _LOG.warning("lease %s: %s", NAME, error)
        _LOG.error("%s leads no longer", self._identity)

    async def _try_patiently(self) -> bool:
        try:
            return await self._try()
        except httpx2.TransportError as error:  # a busy or absent server
            _LOG.warning("lease %s: %r", NAME, error)
            return False

    async def _try(self) -> bool:
        """Take or renew the Lease. Return False when another operator holds it."""
        now = datetime.datetime.now(datetime.UTC)
        try:
            lease = await self._client.get(Lease, NAME, namespace=self._namespace)
        except ApiError as error:
            if error.status.code != NOT_FOUND:
                raise
            return await self._write(self._client.create, Lease(metadata=self._meta(), spec=self._spec(now)))
        if lease.spec.holderIdentity != self._identity and not _expired(lease.spec, now):
            return False
        taken = self._spec(now)
        return await self._write(self._client.replace, Lease(metadata=lease.metadata, spec=taken))

    async def _write(self, write: Any, lease: Any) -> bool:
        """Write the Lease. Return False if another operator was quicker."""
        try:
            await write(lease)
        except ApiError as error:
            if error.status.code != CONFLICT:
                raise
            return False
        return True

    def _meta(self) -> ObjectMeta:
        return ObjectMeta(name=NAME, namespace=self._namespace)

    def _spec(self, now: datetime.datetime) -> LeaseSpec:
        return LeaseSpec(holderIdentity=self._identity, leaseDurationSeconds=self._lasts_s, renewTime=now)


def _expired(spec: LeaseSpec, now: datetime.datetime) -> bool:
    if spec.renewTime is None or spec.leaseDurationSeconds is None:
        return True
    return now > spec.renewTime + datetime.timedelta(seconds=spec.leaseDurationSeconds)
