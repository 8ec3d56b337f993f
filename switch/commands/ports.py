"""Commands about ports, queues, value sets and the switch itself."""

from collections.abc import Callable, Iterator

from kofn.switch.commands.session import CommandError, Commands, Session, check_count, find, number
from kofn.switch.commands.values import digits, value
from kofn.switch.compiler.ir.program import PORT_MAX


def show_ports(session: Session, words: list[str]) -> Iterator[str]:
    """List the ports: show_ports"""
    check_count(words, 0)
    yield f"{'port #':^10}{'iface name':^20}{'status':^10}{'extra info'}"
    yield "=" * 50
    for port, interface in sorted(session.engine.ports.items()):
        yield f"{port:^10}{interface:^20}{'UP':^10}"


def set_queue_depth(session: Session, words: list[str]) -> Iterator[str]:
    """Set the depth of egress queues: set_queue_depth <nb_pkts> [<egress_port> [<priority>]]"""
    _set(words, lambda depth, port, priority: session.engine.set_queue(port, priority, depth=depth))
    yield from ()


def set_queue_rate(session: Session, words: list[str]) -> Iterator[str]:
    """Set the rate of egress queues: set_queue_rate <rate_pps> [<egress_port> [<priority>]]"""
    _set(words, lambda rate, port, priority: session.engine.set_queue(port, priority, rate_pps=rate))
    yield from ()


def pvs_get(session: Session, words: list[str]) -> Iterator[str]:
    """Show the values of a parser value set: pvs_get <value set name>"""
    check_count(words, 1)
    found = find("parser value set", session.program.value_sets.values(), words[0])
    yield from (digits(one, found.width) for one in session.engine.value_set(found.name))


def pvs_add(session: Session, words: list[str]) -> Iterator[str]:
    """Add a value to a parser value set: pvs_add <value set name> <value>"""
    check_count(words, 2)
    found = find("parser value set", session.program.value_sets.values(), words[0])
    one = value(words[1], found.width)
    session.engine.set_value_set(found.name, [*session.engine.value_set(found.name), one])
    yield from ()


def pvs_remove(session: Session, words: list[str]) -> Iterator[str]:
    """Remove a value from a parser value set: pvs_remove <value set name> <value>"""
    check_count(words, 2)
    found = find("parser value set", session.program.value_sets.values(), words[0])
    gone = value(words[1], found.width)
    session.engine.set_value_set(found.name, [one for one in session.engine.value_set(found.name) if one != gone])
    yield from ()


def pvs_clear(session: Session, words: list[str]) -> Iterator[str]:
    """Remove all values from a parser value set: pvs_clear <value set name>"""
    check_count(words, 1)
    found = find("parser value set", session.program.value_sets.values(), words[0])
    session.engine.set_value_set(found.name, [])
    yield from ()


def _set(words: list[str], change: Callable[[int, int | None, int | None], None]) -> None:
    """`change` gets the value, the port and the priority; None: all."""
    check_count(words, 1, 3)
    value, *where = (number(word, "a number") for word in words)
    port, priority = [*where, None, None][:2]
    if value < 0 or not 0 <= (port or 0) <= PORT_MAX or (priority or 0) < 0:
        raise CommandError(f"a value and a priority are 0 or more, a port is in 0..{PORT_MAX}")
    change(value, port, priority)


COMMANDS: Commands = {
    command.__name__: command
    for command in (show_ports, set_queue_depth, set_queue_rate, pvs_get, pvs_add, pvs_remove, pvs_clear)
}
