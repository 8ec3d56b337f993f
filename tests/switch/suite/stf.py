"""Packet scripts in STF form, the notation that P4 compilers' packet tests are written in, to statements.

A statement a line, # starts a comment:

    packet PORT HEX...                      a packet comes in
    expect PORT [HEX...] [$]                one goes out; * is any digit, $ the packet's end, without HEX any packet
    add TABLE [PRIORITY] KEY:VALUE... ACTION(NAME:VALUE, ...)
    setdefault TABLE ACTION(NAME:VALUE, ...)
    member PROFILE ID ACTION(NAME:VALUE, ...)     of an action profile; entries refer to it by member(id:ID)
    group PROFILE ID MEMBER...                    of members, by their ids; entries refer to it by group(id:ID)
    value_set NAME KEY...                         replaces the keys; one of several fields is all of them in a row
    mirroring_add SESSION PORT              a clone session to a port
    mirroring_add_mc SESSION GROUP          a clone session to a multicast group
    mc_mgrp_create GROUP
    mc_node_create RID PORT...              nodes are numbered from 0 in their order
    mc_node_associate GROUP NODE
    register_write NAME INDEX VALUE
    counter_write NAME INDEX PACKETS BYTES
    meter_set_rates NAME INDEX RATE:BURST RATE:BURST       per microsecond, committed and peak
    meter_array_set_rates NAME RATE:BURST RATE:BURST
    check_counter NAME(INDEX) [packets|bytes COND NUMBER]  COND is == != < <= > >=
    check_register NAME(INDEX) COND NUMBER
    expect_digest NAME VALUE...             the next digest
    wait                                    until the packets so far are through

A larger PRIORITY wins.  VALUE is decimal, 0x, 0o or 0b, with * for digits that do not matter; or VALUE/PREFIX_LENGTH,
VALUE&&&MASK, LOW->HIGH.  Names may be written by their end alone.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

TOKEN = re.compile(r'"[^"]*"|[(),:]|==|!=|<=|>=|[^\s(),:"]+')


class PlaceError(Exception):
    """A line is no valid statement; the message names the line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Packet:
    """A packet that comes in."""

    port: int
    data: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Expect:
    """A packet that must go out; `pattern` has hexadecimal digits and *, None: any packet."""

    line: int
    port: int
    pattern: str | None
    exact: bool

    def differs(self, packet: bytes) -> str:
        """Return the difference of a packet from the pattern, empty if it matches."""
        digits, pattern = packet.hex().upper(), self.pattern or ""
        if len(digits) < len(pattern):
            return f"too short: {digits} for {pattern}"
        if self.exact and len(digits) > len(pattern):
            return f"too long: {digits} for {pattern}"
        if all(want in ("*", digit) for want, digit in zip(pattern, digits, strict=False)):
            return ""
        return f"got {digits}, expected {pattern}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """An action and its arguments by name."""

    action: str
    arguments: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Add:
    """A table entry; the key as written, by the fields' names."""

    table: str
    priority: int
    key: Mapping[str, str]
    call: Call


@dataclass(frozen=True, slots=True, kw_only=True)
class SetDefault:
    """A table's default action."""

    table: str
    call: Call


@dataclass(frozen=True, slots=True, kw_only=True)
class AddMember:
    """A member of an action profile."""

    profile: str
    id: int
    call: Call


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A statement that consists of a word, perhaps an object's name, and numbers."""

    word: str
    name: str = ""
    numbers: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """A meter's rates (per microsecond) and bursts; index None: all its cells."""

    name: str
    index: int | None
    rates: tuple[tuple[float, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """A condition on a cell of a counter or register; `kind` is packets, bytes or register."""

    line: int
    name: str
    index: int
    kind: str
    condition: str
    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectDigest:
    """The next digest that must arrive."""

    line: int
    name: str
    fields: tuple[int, ...]


Statement: TypeAlias = Packet | Expect | Add | AddMember | SetDefault | Command | Rates | Check | ExpectDigest


def ports_of(statements: Iterable[Statement]) -> frozenset[int]:
    """Return the ports that a script names."""
    return frozenset(item.port for item in statements if isinstance(item, Packet | Expect))


PLAIN = {  # words of Command: whether a name follows
    "mirroring_add": False,
    "mirroring_add_mc": False,
    "mc_mgrp_create": False,
    "mc_node_create": False,
    "mc_node_associate": False,
    "register_write": True,
    "counter_write": True,
    "group": True,
    "value_set": True,
    "wait": False,
}


@dataclass(slots=True)
class _Tokens:
    """The rest of a line."""

    items: list[str]
    at: int = field(default=0)

    def next(self) -> str:
        self.at += 1
        return self.items[self.at - 1].strip('"')

    def take(self, token: str) -> None:
        found = self.next()
        if found != token:
            raise ValueError(f"{found} where {token} should stand")

    def peek(self, ahead: int = 0) -> str:
        return self.items[self.at + ahead] if self.at + ahead < len(self.items) else ""

    def rest(self) -> list[str]:
        rest, self.at = self.items[self.at :], len(self.items)
        return rest


def parse(text: str) -> list[Statement]:
    """Return the statements of a script. Raises PlaceError."""
    statements = []
    for number, line in enumerate(text.splitlines(), 1):
        tokens = _Tokens(TOKEN.findall(line.split("#")[0]))
        if not tokens.items:
            continue
        try:
            statements.append(_statement(tokens.next().lower(), tokens, number))
        except (ValueError, IndexError) as error:
            raise PlaceError(f"line {number} is no statement: {line.strip()} ({error})") from error
        if tokens.rest():
            raise PlaceError(f"line {number} has too much: {line.strip()}")
    return statements


def _statement(word: str, tokens: _Tokens, line: int) -> Statement:
    if word in PLAIN:
        name = tokens.next() if PLAIN[word] else ""
        return Command(word=word, name=name, numbers=_numbers(tokens.rest()))
    if word not in READERS:
        raise ValueError(f"{word} is not one of the statements")
    return READERS[word](tokens, line)


def _packet(tokens: _Tokens, _line: int) -> Packet:
    return Packet(port=int(tokens.next()), data=bytes.fromhex("".join(tokens.rest())))


def _set_default(tokens: _Tokens, _line: int) -> SetDefault:
    return SetDefault(table=tokens.next(), call=_call(tokens))


def _member(tokens: _Tokens, _line: int) -> AddMember:
    return AddMember(profile=tokens.next(), id=number(tokens.next()), call=_call(tokens))


def _digest(tokens: _Tokens, line: int) -> ExpectDigest:
    return ExpectDigest(line=line, name=tokens.next(), fields=_numbers(tokens.rest()))


def _numbers(words: Sequence[str]) -> tuple[int, ...]:
    return tuple(number(word) for word in words)


def number(word: str) -> int:
    """Return a number in a script's notation; a leading zero does not make it octal."""
    return int(word, 0) if word[:2].lower() in ("0x", "0b", "0o") else int(word)


def _expect(tokens: _Tokens, line: int) -> Expect:
    port, pattern = int(tokens.next()), "".join(tokens.rest()).upper()
    exact = pattern.endswith("$")
    pattern = pattern.removesuffix("$")
    if not re.fullmatch("[0-9A-F*]*", pattern):
        raise ValueError(f"{pattern} holds more than hexadecimal digits and *")
    return Expect(line=line, port=port, pattern=pattern if pattern or exact else None, exact=exact)


def _add(tokens: _Tokens, _line: int) -> Add:
    table = tokens.next()
    priority = int(tokens.next()) if tokens.peek().isdigit() else 0
    key = {}
    while tokens.peek(1) == ":":
        name = tokens.next()
        tokens.take(":")
        key[name] = tokens.next()
    call = _call(tokens)
    if tokens.peek() == "=":  # a name for the entry, which no statement uses
        tokens.rest()
    return Add(table=table, priority=priority, key=key, call=call)


def _call(tokens: _Tokens) -> Call:
    action = tokens.next()
    tokens.take("(")
    arguments: dict[str, int] = {}
    while tokens.peek() != ")":
        if arguments:
            tokens.take(",")
        name = tokens.next()
        tokens.take(":")
        arguments[name] = number(tokens.next())
    tokens.take(")")
    return Call(action=action, arguments=arguments)


def _check_counter(tokens: _Tokens, line: int) -> Check:
    name, index = _cell(tokens)
    if not tokens.peek():
        return Check(line=line, name=name, index=index, kind="packets", condition=">=", number=0)
    kind = tokens.next()
    if kind not in ("packets", "bytes"):
        raise ValueError(f"{kind} is neither packets nor bytes")
    return Check(line=line, name=name, index=index, kind=kind, condition=tokens.next(), number=number(tokens.next()))


def _check_register(tokens: _Tokens, line: int) -> Check:
    name, index = _cell(tokens)
    condition, wanted = tokens.next(), number(tokens.next())
    return Check(line=line, name=name, index=index, kind="register", condition=condition, number=wanted)


def _cell(tokens: _Tokens) -> tuple[str, int]:
    name = tokens.next()
    tokens.take("(")
    index = number(tokens.next())
    tokens.take(")")
    return name, index


def _cell_rates(tokens: _Tokens, _line: int) -> Rates:
    name, index = tokens.next(), number(tokens.next())
    return Rates(name=name, index=index, rates=_rates(tokens))


def _array_rates(tokens: _Tokens, _line: int) -> Rates:
    return Rates(name=tokens.next(), index=None, rates=_rates(tokens))


def _rates(tokens: _Tokens) -> tuple[tuple[float, int], ...]:
    rates = []
    while tokens.peek():
        rate = float(tokens.next())
        tokens.take(":")
        rates.append((rate, number(tokens.next())))
    return tuple(rates)


READERS: Mapping[str, Callable[[_Tokens, int], Statement]] = {
    "packet": _packet,
    "expect": _expect,
    "add": _add,
    "setdefault": _set_default,
    "member": _member,
    "check_counter": _check_counter,
    "check_register": _check_register,
    "meter_set_rates": _cell_rates,
    "meter_array_set_rates": _array_rates,
    "expect_digest": _digest,
}
