"""The identity of the switch of a run.

A running kofn-switch tells name and version in the metadata of its answer to P4Runtime's Capabilities; BMv2 sends none.

    bmv2()                                          # BMv2 on the PATH; None: nothing there, RunError: another switch
    await answering("bmv2", "127.0.0.1:50051")      # a running switch; None: none yet, RunError: another's
"""

import grpc
from finsy.proto import p4r, p4r_grpc

from kofn.run.errors import RunError
from kofn_switch import identity
from kofn_switch.errors import OtherSwitch
from kofn_switch.identity import ANSWER_S, NAME, SwitchIdentity


def bmv2() -> SwitchIdentity | None:
    """Return the BMv2 on the PATH; None if nothing has its name. Raise RunError if another switch has its name."""
    try:
        return identity.bmv2()
    except OtherSwitch as error:
        raise RunError(str(error)) from None


async def answering(target: str, address: str) -> SwitchIdentity | None:
    """Return the switch that answers at a P4Runtime address; None if nothing is there yet. Raise RunError if it is not
    the target's."""
    async with grpc.aio.insecure_channel(address, options=[("grpc.enable_http_proxy", 0)]) as channel:
        call = p4r_grpc.P4RuntimeStub(channel).Capabilities(p4r.CapabilitiesRequest(), timeout=ANSWER_S)
        try:
            told = dict(await call.initial_metadata())
            await call
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.UNAVAILABLE:
                return None
            raise RunError(
                f"the switch at {address} must answer P4Runtime's Capabilities, got {error.code().name}:"
                f" {error.details()}"
            ) from None
    ours = SwitchIdentity(NAME, str(told[NAME])) if NAME in told else None
    wanted, found = (NAME, ours) if target == "embedded" else ("BMv2", None if ours else bmv2())
    if found is None:
        raise RunError(
            f"the switch at {address} must be {wanted} (network.target is {target!r}), got"
            f" {ours or 'one that does not tell its name'}"
        )
    return found
