"""The checks of `kofn doctor` on links, switch and controller; a check starts the process that it checks."""

import asyncio
import functools
import json
import subprocess
import time
from collections.abc import Awaitable, Callable

import finsy as fy
from finsy.proto import p4r

from kofn.doctor.checks import Check, CheckError, by_detail
from kofn.doctor.small_network import POLL_S, UP_S, SmallNetwork
from kofn.run.errors import RunError
from kofn.run.network import ROOT, listens
from kofn.run.switch_identity import answering
from kofn_common.config.errors import KofnError
from kofn_common.results.folder import TrialFolder
from kofn_controller.p4runtime.program import CompiledProgram

ANSWER_S = 10.0


class ControlPlane:
    """The checks from an empty network to a controller that is connected to its switch."""

    def __init__(self, small: SmallNetwork) -> None:
        self._small = small
        self._addresses = dict(zip(small.config.switches, small.commands.p4runtime(), strict=True))

    def checks(self) -> list[Check]:
        """Return the checks in the order of their dependence."""
        checks: dict[str, Callable[[], Awaitable[str]]] = {
            "network": self._small.make,
            "interfaces": self._interfaces,
            "switch": self._switch,
            "P4Runtime": self._p4runtime,
            "program": self._program,
            "controller": self._controller,
        }
        return [Check(name=name, check=check) for name, check in checks.items()]

    async def _interfaces(self) -> str:
        """Check that the switches' ends of all links have a carrier, which means that both ends are up."""
        shown = subprocess.run(["ip", "-json", "link"], capture_output=True, text=True, check=False).stdout
        flags = {link["ifname"]: link["flags"] for link in json.loads(shown or "[]")}
        ready = self._small.network.ready
        names = [name for switch in ready.switches for name in switch.interfaces.values()]
        names.append(ready.management_interface)
        if down := [name for name in names if not {"UP", "LOWER_UP"} <= set(flags.get(name, ()))]:
            detail = f"no carrier at {', '.join(down)}: it, or its other end in the host, is down"
            raise CheckError(detail, f"ip link show {down[0]}; ip link set DEVICE up, on both sides")
        return f"{', '.join(names)} are up"

    async def _switch(self) -> str:
        """Check that each switch's process starts and listens."""
        begin, target = time.monotonic(), self._small.config.network.target
        for number, (name, address) in enumerate(self._addresses.items()):
            interfaces = self._small.network.ready.switches[number].interfaces
            await self._small.launch(name, ROOT, self._small.commands.switch(interfaces, number=number))
            port = int(address.rpartition(":")[2])
            await self._small.until(functools.partial(listens, port), name, f"nothing listens at {address}")
        return f"{target}, listens at {', '.join(self._addresses.values())} after {time.monotonic() - begin:.1f} s"

    async def _p4runtime(self) -> str:
        """Check that each switch speaks P4Runtime for the configured device id."""
        answers = {name: await self._answers(name) for name in self._addresses}
        return by_detail(answers) if len(answers) > 1 else answers["switch"]

    async def _answers(self, name: str) -> str:
        begin, cookie, address = time.monotonic(), await self._cookie(name), self._addresses[name]
        took_ms = (time.monotonic() - begin) * 1e3
        loaded = "no program yet" if cookie is None else f"runs a program with cookie {cookie:#x}"
        try:
            switch = await answering(self._small.config.network.target, address)
        except RunError as error:
            raise CheckError(str(error), "is another switch behind that command or port?") from None
        return f"{switch} at {address} answers in {took_ms:.0f} ms: {loaded}"

    async def _cookie(self, name: str) -> int | None:
        """Return the cookie of a switch's program. Raise CheckError if the switch does not answer, or refuses."""
        address = self._addresses[name]
        device = self._small.config.network.device_id + list(self._addresses).index(name)
        kind = p4r.GetForwardingPipelineConfigRequest.COOKIE_ONLY
        request = p4r.GetForwardingPipelineConfigRequest(device_id=device, response_type=kind)
        try:
            async with asyncio.timeout(ANSWER_S), fy.P4Client(address, wait_for_ready=False) as client:
                reply = await client.request(request)
        except TimeoutError:
            detail = f"{address} takes a connection, but does not answer in {ANSWER_S:.0f} s"
            raise CheckError(detail, "is that a P4Runtime server?") from None
        except fy.P4ClientError as error:
            if error.is_pipeline_missing:
                return None
            detail = f"{address}, device {device}: {error.code.name}: {error.message}"
            raise CheckError(detail, "is it a P4Runtime server, and network.device_id its --device-id?") from None
        return reply.config.cookie.cookie or None

    async def _program(self) -> str:
        """Check that the controller pushes the P4 program, and that every switch reports this program."""
        begin, wanted = time.monotonic(), CompiledProgram().cookie
        entry = TrialFolder(path=self._small.folder, objective="all", shared=self._small.folder)
        await self._small.launch("controller", ROOT, self._small.commands.controller([self._small.settings], entry))

        async def runs() -> bool:
            return all([await self._cookie(name) == wanted for name in self._addresses])

        await self._small.until(runs, "controller", f"the switch does not run {CompiledProgram().blob.name}")
        return f"{CompiledProgram().blob.name} runs {time.monotonic() - begin:.1f} s after the controller's start"

    async def _controller(self) -> str:
        """Check that the controller answers, and is connected to its switch."""
        begin, address = time.monotonic(), self._small.commands.loopback()
        try:
            async with asyncio.timeout(UP_S), self._small.inspector() as inspector:
                async for ready in inspector.ready():
                    if ready:
                        break
                    await self._small.still_running(["controller"])
                    await asyncio.sleep(POLL_S)
        except TimeoutError:
            self._small.fail("controller", f"{address} does not answer, or has no switch, after {UP_S:.0f} s")
        except CheckError:
            raise
        except KofnError as error:
            self._small.fail("controller", f"{address}: {error}")
        how = "certificate and token" if self._small.commands.certificates else "plaintext"
        return f"{address} answers after {time.monotonic() - begin:.1f} s ({how}); its switch is connected"
