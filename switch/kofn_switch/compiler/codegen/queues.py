"""The queues before egress, in C: how a packet enters, and how it leaves."""

from kofn_switch.compiler.codegen.copies import function
from kofn_switch.compiler.codegen.layout import Layout
from kofn_switch.compiler.codegen.standard_metadata import StandardMetadata
from kofn_switch.compiler.ir.program import PRIORITIES


class QueueWriter:
    """Writes `egress_copy` and `depart`."""

    def __init__(self, layout: Layout, metadata: StandardMetadata) -> None:
        self._layout, self._metadata = layout, metadata

    def enqueue(self) -> list[str]:
        """Write `egress_copy`, which queues the packet, or drops it if its priority is out of range. Without queues the
        packet goes on as through empty queues."""
        priority = self._metadata.field("priority") if self._metadata.mentions("priority") else "0"
        refuse = f"if ({priority} >= {self._layout.target.priority_queues}) {{"
        refused = [refuse, "    services(D->core)->drop(D->core, DROP_PRIORITY);", "    return;", "}"]
        body = [
            *(refused if priority != "0" and self._layout.target.priority_queues < PRIORITIES else []),
            *self._metadata.timestamps("now_us(D->core)", "enq_timestamp"),
            "if (services(D->core)->enqueue) {",
            f"    services(D->core)->enqueue(D->core, port, {priority}, D, sizeof *D, D->packet, D->length);",
            "    return;",
            "}",
            *self._waited("0", "0", "0"),
            "leave(D, port);",
        ]
        return function("void egress_copy(struct state *D, uint32_t port)", body)

    def _waited(self, depth: str, waited_us: str, depth_left: str) -> list[str]:
        """Set the fields about the packet's time in the queue, if the program reads them. The values are C
        expressions."""
        values = {"enq_qdepth": depth, "deq_timedelta": waited_us, "deq_qdepth": depth_left}
        wanted = {field: value for field, value in values.items() if self._metadata.mentions(field)}
        return [line for field, value in wanted.items() for line in self._layout.set_meta(field, value)]

    def depart(self) -> list[str]:
        """Write `depart`: a packet leaves its queue, with the state that it had when it entered the queue."""
        copies = self._layout.copies
        body = [
            f"struct state *D = {'&((struct whole *)in->state)->now' if copies else 'in->state'};",
            "memcpy(D, from->state, sizeof *D);",
            "D->core = core; D->in = in; D->packet = from->packet; D->tail = NULL;",
            *(["D->held = 0;"] if copies else []),
            *self._waited("from->depth", "from->waited_us", "from->depth_left"),
            "leave(D, from->port);",
            *(["go_on(in->state);"] if copies else []),
        ]
        head = "void depart(struct core *core, struct instance *in, const struct departure *from)"
        return function(head, body)

    @property
    def read(self) -> bool:
        """Whether the program reads metadata that only queues provide."""
        return any(map(self._metadata.mentions, ("enq_qdepth", "deq_timedelta", "deq_qdepth")))
