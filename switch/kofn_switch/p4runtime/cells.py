"""Counts and meter configurations, in messages and in the engine.

A meter without a configuration colours all packets green. So does a meter whose rates and bursts are all -1, which
clients of older servers write.
"""

from finsy.proto import p4r

from kofn_switch.p4runtime.p4info import DirectMeter, Meter
from kofn_switch.p4runtime.refusal import invalid, unimplemented
from kofn_switch.state.entries import Count, MeterConfig

UpdateType = int  # p4r.Update.INSERT, MODIFY or DELETE
GREEN = (-1, -1, -1, -1)


def count(data: p4r.CounterData) -> Count:
    """Return the engine's count; INVALID_ARGUMENT for negative numbers."""
    if data.packet_count < 0 or data.byte_count < 0:
        raise invalid(f"a counter must be 0 or more, got {data.packet_count} packets, {data.byte_count} bytes")
    return Count(packets=data.packet_count, bytes=data.byte_count)


def counter_data(cell: Count) -> p4r.CounterData:
    """Return the message of a count."""
    return p4r.CounterData(packet_count=cell.packets, byte_count=cell.bytes)


def decode_config(meter: Meter | DirectMeter, message: p4r.MeterConfig | None) -> MeterConfig | None:
    """Return the engine's configuration; None: all is green."""
    if message is None or (message.cir, message.cburst, message.pir, message.pburst) == GREEN:
        return None
    if message.eburst:
        raise unimplemented(f"eburst {message.eburst} of meter {meter.name}: excess bursts are not offered; 0 is")
    if min(message.cir, message.cburst, message.pir, message.pburst) < 0:
        raise invalid(f"rates and bursts of meter {meter.name} must be 0 or more, got a negative one")
    if message.cir > message.pir:
        raise invalid(f"cir {message.cir} of meter {meter.name} is above pir {message.pir}")
    if meter.single_rate and (message.cir, message.cburst) != (message.pir, message.pburst):
        raise invalid(f"meter {meter.name} has a single rate: pir and pburst must be equal to cir and cburst")
    return MeterConfig(
        committed_rate=message.cir,
        committed_burst=message.cburst,
        peak_rate=message.pir,
        peak_burst=message.pburst,
    )


def encode_config(config: MeterConfig | None) -> p4r.MeterConfig | None:
    """Return the message of a configuration; None, an unset field, when all is green."""
    if config is None:
        return None
    return p4r.MeterConfig(
        cir=round(config.committed_rate),
        cburst=config.committed_burst,
        pir=round(config.peak_rate),
        pburst=config.peak_burst,
    )


def refuse_colours(given: bool, what: str) -> None:
    """Refuse counts by colour, which the switch does not keep."""
    if given:
        raise unimplemented(f"counts by colour of {what}: meters do not count; leave the field unset")
