"""The checks of `kofn doctor` on links, switch and controller; each check starts its own subject."""

import asyncio
import json
import subprocess
import time
from collections.abc import Awaitable, Callable

import finsy as fy
from finsy.proto import p4r

from kofn.config.errors import KofnError
from kofn.controller.p4runtime.program import CompiledProgram
from kofn.doctor.checks import Check, CheckError
from kofn.doctor.lab import POLL_S, UP_S, Laboratory
from kofn.results.folder import TrialFolder
from kofn.run.errors import RunError
from kofn.run.network import ROOT, listens
from kofn.run.switch_identity import answering

ANSWER_S = 10.0


class ControlPlane:
    """The checks from an empty network to a controller that is connected to its switch."""

    def __init__(self, laboratory: Laboratory) -> None:
        self._lab = laboratory
        self._address = f"127.0.0.1:{laboratory.config.network.p4runtime_port}"

    def checks(self) -> list[Check]:
        """Return the checks in the order of their dependence."""
        checks: dict[str, Callable[[], Awaitable[str]]] = {
            "network": self._lab.make,
            "interfaces": self._interfaces,
            "switch": self._switch,
            "P4Runtime": self._p4runtime,
            "program": self._program,
            "controller": self._controller,
        }
        return [Check(name=name, check=check) for name, check in checks.items()]

    async def _interfaces(self) -> str:
        """Check that our ends of all links have a carrier, which means that the other ends are up as well."""
        shown = subprocess.run(["ip", "-json", "link"], capture_output=True, text=True, check=False).stdout
        flags = {link["ifname"]: link["flags"] for link in json.loads(shown or "[]")}
        ready = self._lab.network.ready
        names = [*ready.interfaces().values(), ready.management_interface]
        if down := [name for name in names if not {"UP", "LOWER_UP"} <= set(flags.get(name, ()))]:
            detail = f"no carrier at {', '.join(down)}: it, or its other end in the host, is down"
            raise CheckError(detail, f"ip link show {down[0]}; ip link set DEVICE up, on both sides")
        return f"{', '.join(names)} are up"

    async def _switch(self) -> str:
        """Check that the switch's process starts and listens."""
        begin, target = time.monotonic(), self._lab.config.network.target
        await self._lab.launch("switch", ROOT, self._lab.commands.switch(self._lab.network.ready.interfaces()))
        await self._lab.until(self._listens, "switch", f"nothing listens at {self._address}")
        return f"{target}, listens at {self._address} after {time.monotonic() - begin:.1f} s"

    async def _listens(self) -> bool:
        """Return whether the port accepts a TCP connection."""
        return await listens(self._lab.config.network.p4runtime_port)

    async def _p4runtime(self) -> str:
        """Check that the switch speaks P4Runtime, for our device."""
        begin, cookie = time.monotonic(), await self._cookie()
        took_ms = (time.monotonic() - begin) * 1e3
        loaded = "no program yet" if cookie is None else f"runs a program with cookie {cookie:#x}"
        try:
            switch = await answering(self._lab.config.network.target, self._address)
        except RunError as error:
            raise CheckError(str(error), "is another switch behind that command or port?") from None
        return f"{switch} at {self._address} answers in {took_ms:.0f} ms: {loaded}"

    async def _cookie(self) -> int | None:
        """Return the cookie of the switch's program. Raise CheckError where the switch does not answer, or refuses."""
        device = self._lab.config.network.device_id
        kind = p4r.GetForwardingPipelineConfigRequest.COOKIE_ONLY
        request = p4r.GetForwardingPipelineConfigRequest(device_id=device, response_type=kind)
        try:
            async with asyncio.timeout(ANSWER_S), fy.P4Client(self._address, wait_for_ready=False) as client:
                reply = await client.request(request)
        except TimeoutError:
            detail = f"{self._address} takes a connection and says nothing in {ANSWER_S:.0f} s"
            raise CheckError(detail, "is that a P4Runtime server?") from None
        except fy.P4ClientError as error:
            if error.is_pipeline_missing:
                return None
            detail = f"{self._address}, device {device}: {error.code.name}: {error.message}"
            raise CheckError(detail, "is it a P4Runtime server, and network.device_id its --device-id?") from None
        return reply.config.cookie.cookie or None

    async def _program(self) -> str:
        """Check that the controller pushes the P4 program, and that the switch reports it."""
        begin, wanted = time.monotonic(), CompiledProgram().cookie
        entry = TrialFolder(path=self._lab.folder, objective="all", shared=self._lab.folder)
        await self._lab.launch("controller", ROOT, self._lab.commands.controller([self._lab.settings], entry))

        async def runs() -> bool:
            return await self._cookie() == wanted

        await self._lab.until(runs, "controller", f"the switch does not run {CompiledProgram().blob.name}")
        return f"{CompiledProgram().blob.name} runs {time.monotonic() - begin:.1f} s after the controller's start"

    async def _controller(self) -> str:
        """Check that the controller answers us, and is connected to its switch."""
        begin, address = time.monotonic(), self._lab.commands.loopback()
        try:
            async with asyncio.timeout(UP_S), self._lab.inspector() as inspector:
                async for ready in inspector.ready():
                    if ready:
                        break
                    await self._lab.still_running(["controller"])
                    await asyncio.sleep(POLL_S)
        except TimeoutError:
            self._lab.fail("controller", f"{address} does not answer, or has no switch, after {UP_S:.0f} s")
        except CheckError:
            raise
        except KofnError as error:
            self._lab.fail("controller", f"{address}: {error}")
        how = "certificate and token" if self._lab.commands.certificates else "plaintext"
        return f"{address} answers after {time.monotonic() - begin:.1f} s ({how}); its switch is connected"
