"""Faults that the switch injects at its ports, as typed rules and as the text of `--fault`.

runtime/faults.c carries the rules out. Times count from the port's first frame; frames are numbered from 1 for each
port and direction. With faults for one UDP port (`--fault-udp-port`), other frames are neither changed nor counted.
"""

import math
from collections.abc import Callable, Sequence
from ctypes import c_uint32
from dataclasses import dataclass, fields
from typing import Any

from kofn_switch import structs
from kofn_switch.errors import FaultError

DIRECTIONS = {"in": 1, "out": 2, "both": 3}  # bit 0: into the switch
NUMBER_MAX = (1 << 32) - 1
DELAY_MAX_MS = 3_600_000.0
TIME_MAX = (1 << 64) - 1  # nanoseconds; practically for ever


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultRule:
    """A rule for some frames of one port; several rules apply one after another.

    drop, duplicate, corrupt and reorder are probabilities. corrupt flips one bit of a frame; reorder holds a frame back
    until the next frame has passed, 20 ms at most. jitter is uniform from 0 and adds to delay.
    """

    port: int
    direction: str = "both"  # "in": from the interface into the switch, "out", "both"
    drop: float = 0.0
    duplicate: float = 0.0
    corrupt: float = 0.0
    reorder: float = 0.0
    delay_ms: float = 0.0
    jitter_ms: float = 0.0
    from_s: float = 0.0
    until_s: float = math.inf
    packets: tuple[int, ...] = ()  # only these frames; empty: all

    def __str__(self) -> str:
        """Return the text for `--fault`, without defaults."""
        given = [field.name for field in fields(self) if getattr(self, field.name) != field.default]
        return ",".join(f"{name.replace('_', '-')}={_text(getattr(self, name))}" for name in given)


EFFECTS = ("drop", "duplicate", "corrupt", "reorder", "delay_ms", "jitter_ms")


def parse_rule(text: str) -> FaultRule:
    """Return the rule of `--fault TEXT`, KEY=VALUE with commas between. Raise FaultError."""
    values: dict[str, Any] = {}
    for item in text.split(","):
        key, equals, value = item.partition("=")
        if not equals or key not in KEYS:
            raise FaultError(f"--fault {text}: KEY=VALUE must have one of the keys {', '.join(KEYS)}, got {item!r}")
        name = key.replace("-", "_")
        if name in values:
            raise FaultError(f"--fault {text}: {key} must be given once, got two")
        values[name] = _value(text, key, value)
    if "port" not in values:
        raise FaultError(f"--fault {text}: port must be given, as in port=1,drop=0.1")
    return _checked(text, FaultRule(**values))


def _checked(text: str, rule: FaultRule) -> FaultRule:
    if not any(getattr(rule, effect) for effect in EFFECTS):
        names = ", ".join(effect.replace("_", "-") for effect in EFFECTS)
        raise FaultError(f"--fault {text}: one or more of {names} must be above 0, got none")
    if rule.until_s <= rule.from_s:
        raise FaultError(f"--fault {text}: until-s must be more than from-s = {rule.from_s:g}, got {rule.until_s:g}")
    return rule


def _value(text: str, key: str, value: str) -> Any:
    read, allowed = KEYS[key]
    try:
        return read(value)
    except ValueError:
        raise FaultError(f"--fault {text}: {key} must be {allowed}, got {value!r}") from None


def _port(value: str) -> int:
    return int(_if(value.isdecimal(), value))


def _direction(value: str) -> str:
    return _if(value in DIRECTIONS, value)


def _probability(value: str) -> float:
    return float(_if(0 <= float(value) <= 1, value))


def _time(value: str) -> float:
    return float(_if(float(value) >= 0, value))


def _delay(value: str) -> float:
    return float(_if(0 <= float(value) <= DELAY_MAX_MS, value))


def _numbers(value: str) -> tuple[int, ...]:
    parts = value.split("+")
    _if(all(part.isdecimal() and 1 <= int(part) <= NUMBER_MAX for part in parts), value)
    return tuple(map(int, parts))


def _if(allowed: bool, value: str) -> str:
    if not allowed:
        raise ValueError(value)
    return value


PROBABILITY = (_probability, "0 to 1")
KEYS: dict[str, tuple[Callable[[str], Any], str]] = {
    "port": (_port, "a port number"),
    "direction": (_direction, "in, out or both"),
    "drop": PROBABILITY,
    "duplicate": PROBABILITY,
    "corrupt": PROBABILITY,
    "reorder": PROBABILITY,
    "delay-ms": (_delay, "0 to 3600000"),
    "jitter-ms": (_delay, "0 to 3600000"),
    "from-s": (_time, "0 or more"),
    "until-s": (_time, "0 or more"),
    "packets": (_numbers, "one or more numbers from 1, as in 3+4"),
}


def _text(value: Any) -> str:
    if isinstance(value, tuple):
        return "+".join(map(str, value))
    return value if isinstance(value, str) else repr(value)


def native_rules(rules: Sequence[FaultRule]) -> tuple[Any, Any, int]:
    """Return the rules for core_set_faults: an array of rules, all their frame numbers, and their count."""
    numbers = [number for rule in rules for number in rule.packets]
    made: list[structs.FaultRule] = []
    first = 0
    for rule in rules:
        made.append(_native(rule, first))
        first += len(rule.packets)
    return (structs.FaultRule * len(made))(*made), (c_uint32 * max(1, len(numbers)))(*numbers), len(numbers)


def _native(rule: FaultRule, first_number: int) -> structs.FaultRule:
    return structs.FaultRule(
        port=rule.port,
        directions=DIRECTIONS[rule.direction],
        drop=rule.drop,
        duplicate=rule.duplicate,
        corrupt=rule.corrupt,
        reorder=rule.reorder,
        delay_ns=_nanoseconds(rule.delay_ms / 1000),
        jitter_ns=_nanoseconds(rule.jitter_ms / 1000),
        from_ns=_nanoseconds(rule.from_s),
        until_ns=_nanoseconds(rule.until_s),
        first_number=first_number,
        numbers=len(rule.packets),
    )


def _nanoseconds(seconds: float) -> int:
    return TIME_MAX if seconds * 1e9 >= TIME_MAX else round(seconds * 1e9)
