"""Commands about counters, registers and meters."""

from collections.abc import Iterator
from dataclasses import dataclass

from kofn_switch.commands.session import CommandError, Commands, Session, check_count, find, number
from kofn_switch.compiler.ir.program import Array, Meter, Table
from kofn_switch.state.entries import Count, MeterConfig

PER_MICROSECOND = 1_000_000
RATES = 2
COUNTS = range(1 << 64)


@dataclass(frozen=True, slots=True)
class Direct:
    """The cells of a table's entries, under the name of their direct counter or meter."""

    name: str
    table: Table


def counter_read(session: Session, words: list[str]) -> Iterator[str]:
    """Read a cell of a counter: counter_read <name> <index or entry handle>"""
    check_count(words, 2)
    index = number(words[1], "index")
    counter = _counter(session, words[0])
    if isinstance(counter, Direct):
        yield f"this is the direct counter for table {counter.table.name}"
        entry = session.entry(counter.table, words[1])
        count = session.engine.count(entry.table, entry.key, entry.priority)
    else:
        count = session.engine.read_counter(counter.name, index)
    yield f"{words[0]}[{index}]= ({count.bytes} bytes, {count.packets} packets)"


def counter_write(session: Session, words: list[str]) -> Iterator[str]:
    """Write a cell of a counter: counter_write <name> <index or entry handle> <packets> <bytes>"""
    check_count(words, 4)
    index = number(words[1], "index")
    count = Count(packets=number(words[2], "packets", COUNTS), bytes=number(words[3], "bytes", COUNTS))
    counter = _counter(session, words[0])
    if isinstance(counter, Direct):
        yield f"writing to direct counter for table {counter.table.name}"
        entry = session.entry(counter.table, words[1])
        session.engine.set_count(entry.table, entry.key, entry.priority, count)
    else:
        session.engine.write_counter(counter.name, index, count)
    yield f"{words[0]}[{index}] has been updated"


def counter_reset(session: Session, words: list[str]) -> Iterator[str]:
    """Set all cells of a counter to 0: counter_reset <name>"""
    check_count(words, 1)
    counter, nothing = _counter(session, words[0]), Count(packets=0, bytes=0)
    if isinstance(counter, Direct):
        yield f"this is the direct counter for table {counter.table.name}"
        for entry in session.engine.entries(counter.table.name):
            session.engine.set_count(entry.table, entry.key, entry.priority, nothing)
    else:
        session.engine.reset_counters(counter.name)


def register_read(session: Session, words: list[str]) -> Iterator[str]:
    """Read one cell of a register, or all: register_read <name> [index]"""
    check_count(words, 1, 2)
    register = _register(session, words[0])
    if len(words) > 1:
        index = number(words[1], "index")
        yield f"{words[0]}[{index}]= {session.engine.read_register(register.name, index)}"
    else:
        yield f"{words[0]}= {', '.join(map(str, session.engine.registers(register.name)))}"


def register_write(session: Session, words: list[str]) -> Iterator[str]:
    """Write a cell of a register: register_write <name> <index> <value>"""
    check_count(words, 3)
    register = _register(session, words[0])
    session.engine.write_register(register.name, number(words[1], "index"), number(words[2], "value"))
    yield from ()


def register_reset(session: Session, words: list[str]) -> Iterator[str]:
    """Set all cells of a register to 0: register_reset <name>"""
    check_count(words, 1)
    session.engine.reset_registers(_register(session, words[0]).name)
    yield from ()


def meter_set_rates(session: Session, words: list[str]) -> Iterator[str]:
    """Configure a cell of a meter, rates in units a microsecond:
    meter_set_rates <name> <index or entry handle> <rate 1>:<burst 1> <rate 2>:<burst 2>"""
    check_count(words, 4)
    meter, config = _meter(session, words[0]), _config(words[2:])
    if isinstance(meter, Direct):
        entry = session.entry(meter.table, words[1])
        session.engine.set_meter(entry.table, entry.key, entry.priority, config)
    else:
        session.engine.write_meter(meter.name, number(words[1], "index"), config)
    yield from ()


def meter_array_set_rates(session: Session, words: list[str]) -> Iterator[str]:
    """Configure all cells of a meter: meter_array_set_rates <name> <rate 1>:<burst 1> <rate 2>:<burst 2>"""
    check_count(words, 3)
    meter, config = _meter(session, words[0]), _config(words[1:])
    if isinstance(meter, Direct):
        session.engine.set_meters(meter.table.name, config)
    else:
        for index in range(meter.size):
            session.engine.write_meter(meter.name, index, config)
    yield from ()


def meter_get_rates(session: Session, words: list[str]) -> Iterator[str]:
    """Show a cell of a meter: meter_get_rates <name> <index or entry handle>"""
    check_count(words, 2)
    meter = _meter(session, words[0])
    if isinstance(meter, Direct):
        entry = session.entry(meter.table, words[1])
        config = session.engine.meter(entry.table, entry.key, entry.priority)
    else:
        config = session.engine.read_meter(meter.name, number(words[1], "index"))
    if config is None:
        yield f"WARNING: expected {RATES} rates but only received 0"
        return
    rates = (config.committed_rate, config.committed_burst), (config.peak_rate, config.peak_burst)
    for place, (rate, burst) in enumerate(rates):
        yield f"{place}: info rate = {rate / PER_MICROSECOND}, burst size = {burst}"


def _counter(session: Session, name: str) -> Array | Direct:
    direct: list[Array | Direct] = [
        Direct(table.counter, table) for table in session.program.tables if table.counter is not None
    ]
    return find("counter", [*direct, *session.program.counters], name)


def _register(session: Session, name: str) -> Array:
    return find("register", session.program.registers, name)


def _meter(session: Session, name: str) -> Meter | Direct:
    direct: list[Meter | Direct] = [
        Direct(table.meter.name, table) for table in session.program.tables if table.meter is not None
    ]
    return find("meter", [*direct, *session.program.meters], name)


def _config(words: list[str]) -> MeterConfig:
    try:
        rates = [(float(rate), int(burst)) for rate, burst in (word.split(":") for word in words)]
    except ValueError as error:
        raise CommandError("Error while parsing rates: they must be two of the form <rate>:<burst>") from error
    (committed, committed_burst), (peak, peak_burst) = rates
    return MeterConfig(
        committed_rate=committed * PER_MICROSECOND,
        committed_burst=committed_burst,
        peak_rate=peak * PER_MICROSECOND,
        peak_burst=peak_burst,
    )


COMMANDS: Commands = {
    command.__name__: command
    for command in (
        *(counter_read, counter_write, counter_reset, register_read, register_write, register_reset),
        *(meter_set_rates, meter_array_set_rates, meter_get_rates),
    )
}
