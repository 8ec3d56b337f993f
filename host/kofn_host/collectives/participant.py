"""A worker's connection to the coordinator: it sends calls, and receives agreed calls."""

import threading
from collections.abc import Callable
from dataclasses import dataclass

from kofn_common.running_clock import RunningClock
from kofn_host.collectives.call import Key
from kofn_host.collectives.coordinator import FAREWELL_S, grace_s, tick_s
from kofn_host.collectives.messages import Agreed, Channel, Gone, Leaving, Message, Over, Ping, Posted, Trouble


@dataclass(frozen=True, slots=True, kw_only=True)
class Listener:
    """Callbacks: `agreed` for the next call and its note (messages.Agreed); `over` for failed calls (messages.Over)."""

    agreed: Callable[[Key, bytes], None]
    over: Callable[[str, bool], None]


class _Silent(Exception):  # noqa: N818  # leaves the loop
    """The coordinator does not answer, or sends a wrong message."""


class Participant(threading.Thread):
    """The participant's thread.

    `timeout_s`: the coordinator's time-out; the coordinator answers every call by then or a little later.
    """

    def __init__(self, channel: Channel, listener: Listener, timeout_s: float) -> None:
        super().__init__(name="participant", daemon=True)
        self._channel, self._listener = channel, listener
        self._tick_s, self._grace_s = tick_s(timeout_s), grace_s(timeout_s)
        self._clock = RunningClock(4 * self._tick_s)
        self._patience_s = timeout_s + 3 * self._grace_s
        self._posted: dict[Key, float] = {}
        """The calls that are not agreed yet, with the times when they were made."""
        self._trouble, self._trouble_s = "", 0.0
        self._left = False

    def post(self, key: Key, call: str, note: bytes) -> None:
        """Send a call; `note`: as in messages.Posted."""
        self._posted[key] = self._clock()
        self._channel.send(Posted(key=key, call=call, note=note))

    def report(self, reason: str, *, silent: bool, key: Key | None = None) -> None:
        """Report that a call cannot be carried out, so that the coordinator ends all calls; `silent`, `key`: as in
        Trouble."""
        self._trouble, self._trouble_s = reason, self._clock()
        self._channel.send(Trouble(reason=reason, silent=silent, key=key))

    def leave(self, trouble: str) -> None:
        """Make no more calls; `trouble`: why other workers' calls fail, if they do."""
        self._left = True
        self._channel.send(Trouble(reason=trouble, silent=False) if trouble else Leaving())
        self._channel.finish(FAREWELL_S)
        if threading.current_thread() is not self:
            self.join(FAREWELL_S)

    def run(self) -> None:
        try:
            while self._listen():
                pass
        except (Gone, _Silent) as error:
            self._over(str(error) or "worker 0 is gone: its connection has ended", at_once=True)
        self._channel.close()

    def _listen(self) -> bool:
        """Handle received messages; return whether more messages may come."""
        messages = self._channel.receive(self._tick_s)
        if not messages:
            self._check_deadlines(self._clock())
        for message in messages:
            if isinstance(message, Over):
                self._over(message.reason, at_once=message.at_once)
                return False
            self._take_message(message)
        return True

    def _take_message(self, message: Message) -> None:
        match message:
            case Agreed(key, note):
                self._posted.pop(key, None)
                self._listener.agreed(key, note)
            case Ping():
                self._channel.send(message)
            case _:
                raise _Silent(f"worker 0 sends a message that no coordinator sends: {message}")

    def _over(self, reason: str, *, at_once: bool) -> None:
        if not self._left:
            self._listener.over(reason, at_once)

    def _check_deadlines(self, now_s: float) -> None:
        """Raise _Silent if the coordinator's answer is overdue."""
        if self._trouble and now_s - self._trouble_s > 2 * self._grace_s:
            raise _Silent(f"worker 0 does not answer: {self._trouble}")
        since_s = next(iter(self._posted.copy().values()), now_s)
        if now_s - since_s > self._patience_s:
            raise _Silent(f"worker 0 does not answer for {self._patience_s:g} s")
