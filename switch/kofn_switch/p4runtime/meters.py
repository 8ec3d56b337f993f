"""MeterEntry: configures one cell, or all cells, of the engine's meter arrays."""

from collections.abc import Iterator

from finsy.proto import p4r

from kofn_switch.engine.engine import Engine
from kofn_switch.p4runtime.arrays import indices, only_modify, selected
from kofn_switch.p4runtime.cells import UpdateType, decode_config, encode_config, refuse_colours
from kofn_switch.p4runtime.p4info import P4Info


class Meters:
    """The program's meter arrays as P4Runtime has them."""

    def __init__(self, engine: Engine, p4info: P4Info) -> None:
        """Take the `p4info` of the program that `engine` runs."""
        self._engine = engine
        self._p4info = p4info

    def write(self, kind: UpdateType, message: p4r.MeterEntry) -> None:
        """Carry out MODIFY of one cell, or of all cells if the index is unset; without a config all is green."""
        meter = self._p4info.meters.get(message.meter_id)
        only_modify(kind, "meter", meter)
        refuse_colours(message.HasField("counter_data"), f"meter {meter.name}")
        config = decode_config(meter, message.config if message.HasField("config") else None)
        for index in indices("meter", meter, message.index if message.HasField("index") else None):
            self._engine.write_meter(meter.name, index, config)

    def read(self, query: p4r.MeterEntry) -> Iterator[p4r.MeterEntry]:
        """Yield one cell, all cells of a meter (no index), or all cells of all meters (id 0)."""
        refuse_colours(query.HasField("counter_data"), "a meter")
        wanted = query.index if query.HasField("index") else None
        for meter in selected(self._p4info.meters, query.meter_id):
            for index in indices("meter", meter, wanted):
                config = encode_config(self._engine.read_meter(meter.name, index))
                yield p4r.MeterEntry(meter_id=meter.id, index=p4r.Index(index=index), config=config)
