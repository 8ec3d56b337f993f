"""Commands about ports, queues, value sets and the switch itself."""

import time
from collections.abc import Iterator

from kofn_switch.commands.session import CommandError, Commands, Session, check_count, find, number
from kofn_switch.commands.values import digits, value
from kofn_switch.compiler.ir.program import PORT_MAX

SETTING_MAX = 0x7FFFFFFF
"""The largest depth or rate of a queue."""


def show_ports(session: Session, words: list[str]) -> Iterator[str]:
    """List the ports: show_ports"""
    check_count(words, 0)
    yield f"{'port #':^10}{'iface name':^20}{'status':^10}{'extra info'}"
    yield "=" * 50
    for port, interface in sorted(session.engine.ports.items()):
        yield f"{port:^10}{interface:^20}{'UP':^10}"


def set_queue_depth(session: Session, words: list[str]) -> Iterator[str]:
    """Set the depth of egress queues: set_queue_depth <nb_pkts> [<egress_port> [<priority>]]"""
    depth, port, priority = _queues(session, words, "nb_pkts")
    session.engine.set_queue(port, priority, depth=depth)
    yield from ()


def set_queue_rate(session: Session, words: list[str]) -> Iterator[str]:
    """Set the rate of egress queues: set_queue_rate <rate_pps> [<egress_port> [<priority>]]"""
    rate, port, priority = _queues(session, words, "rate_pps")
    session.engine.set_queue(port, priority, rate_pps=rate)
    yield from ()


def show_pvs(session: Session, words: list[str]) -> Iterator[str]:
    """List the parser value sets: show_pvs"""
    check_count(words, 0)
    for known in sorted(session.program.value_sets.values(), key=lambda value_set: value_set.name):
        yield f"{known.name:30} [compressed bitwidth:{known.width}]"


def pvs_get(session: Session, words: list[str]) -> Iterator[str]:
    """Show the values of a parser value set: pvs_get <value set name>"""
    check_count(words, 1)
    found = find("parser value set", session.program.value_sets.values(), words[0])
    yield from (digits(key, found.width) for key in session.engine.value_set(found.name))


def pvs_add(session: Session, words: list[str]) -> Iterator[str]:
    """Add a value to a parser value set: pvs_add <value set name> <value>"""
    check_count(words, 2)
    found = find("parser value set", session.program.value_sets.values(), words[0])
    added = value(words[1], found.width)
    session.engine.set_value_set(found.name, [*session.engine.value_set(found.name), added])
    yield from ()


def pvs_remove(session: Session, words: list[str]) -> Iterator[str]:
    """Remove a value from a parser value set: pvs_remove <value set name> <value>"""
    check_count(words, 2)
    found = find("parser value set", session.program.value_sets.values(), words[0])
    gone = value(words[1], found.width)
    session.engine.set_value_set(found.name, [key for key in session.engine.value_set(found.name) if key != gone])
    yield from ()


def pvs_clear(session: Session, words: list[str]) -> Iterator[str]:
    """Remove all values from a parser value set: pvs_clear <value set name>"""
    check_count(words, 1)
    found = find("parser value set", session.program.value_sets.values(), words[0])
    session.engine.set_value_set(found.name, [])
    yield from ()


def switch_info(session: Session, words: list[str]) -> Iterator[str]:
    """Show the device id and the Thrift port; this switch has none of BMv2's three sockets: switch_info"""
    check_count(words, 0)
    shown = {"device_id": session.device_id, "thrift_port": session.port}
    for name in (*shown, "notifications_socket", "elogger_socket", "debugger_socket"):
        yield f"{name:25}: {shown.get(name)}"


def get_time_elapsed(session: Session, words: list[str]) -> Iterator[str]:
    """Show the microseconds since the switch started (the clock of packets' timestamps): get_time_elapsed"""
    check_count(words, 0)
    yield str(session.engine.elapsed_us)


def get_time_since_epoch(session: Session, words: list[str]) -> Iterator[str]:
    """Show the microseconds since 1970: get_time_since_epoch"""
    check_count(words, 0)
    yield str(time.time_ns() // 1000)


def reset_state(session: Session, words: list[str]) -> Iterator[str]:
    """Reset tables, action profiles, counters, meters, registers and multicast groups as after a start: reset_state"""
    check_count(words, 0)
    session.engine.reset()
    session.nodes.clear()
    session.groups.clear()
    yield from ()


def get_config(session: Session, words: list[str]) -> Iterator[str]:
    """Show the program's JSON: get_config"""
    check_count(words, 0)
    yield session.engine.document.decode(errors="replace")


def write_config_to_file(session: Session, words: list[str]) -> Iterator[str]:
    """Write the program's JSON to a file: write_config_to_file <file>"""
    raise CommandError("simple_switch_CLI carries this command out itself")


def shell(session: Session, words: list[str]) -> Iterator[str]:
    """Run a shell command: shell <command>"""
    raise CommandError("simple_switch_CLI carries this command out itself")


def _queues(session: Session, words: list[str], what: str) -> tuple[int, int | None, int | None]:
    """Return the new depth or rate with its port and priority; None means all ports or all priorities."""
    check_count(words, 1, 3)
    settings = (
        (what, range(SETTING_MAX + 1)),
        ("egress_port", range(PORT_MAX + 1)),
        ("priority (of --priority-queues)", range(session.engine.priority_queues)),
    )
    value, *where = (number(word, *setting) for word, setting in zip(words, settings, strict=False))
    port, priority = [*where, None, None][:2]
    return value, port, priority


COMMANDS: Commands = {
    command.__name__: command
    for command in (
        *(show_ports, set_queue_depth, set_queue_rate, show_pvs, pvs_get, pvs_add, pvs_remove, pvs_clear),
        *(switch_info, get_time_elapsed, get_time_since_epoch, reset_state, get_config, write_config_to_file, shell),
    )
}
