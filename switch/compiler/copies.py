"""Clones, and packets that begin anew, in C; only in programs that make them.

A clone of ingress goes through egress before its original, from a state of its own.  What egress makes, and what is
parsed again, is held until the packet's own way has ended, first come, first served.  Of the metadata, such a packet
keeps what its field list says; the rest is zero (targets/simple_switch of behavioral-model defines all this).
"""

from switch.compiler.layout import META, Layout
from switch.compiler.lowering import Lowering
from switch.compiler.program import Constant, Expression, FieldList, FieldOf

INGRESS_CLONE, EGRESS_CLONE, RECIRCULATED, RESUBMITTED = 1, 2, 4, 6  # instance_type
HELD = 1024  # packets that wait at a time
PASSES = 4096  # of what one received packet becomes

STRUCTS = f"""
struct held {{
    uint32_t clone, length;  // clone: its session; 0: to be parsed again
    struct state state;      // of a packet to be parsed again only the metadata
    uint8_t bytes[PACKET_MAX + HEAD_BYTES + TAIL_BYTES];
}};

struct whole {{
    struct state now, clone;
    uint32_t first, count;
    struct held held[{HELD}];
}};

static struct whole *whole(struct state *D) {{ return D->in->state; }}

static struct held *hold(struct state *D) {{
    struct whole *all = whole(D);
    if (all->count < {HELD}) return &all->held[(all->first + all->count++) % {HELD}];
    services(D->core)->drop(D->core, DROP_COPY_QUEUE_FULL);
    return NULL;
}}
"""

CLONE_EGRESS = f"""
static void clone_egress(struct state *D) {{
    const uint32_t clone = D->clone;
    D->clone = 0;
    if (!services(D->core)->session(D->core, clone & SESSION_MAX)) return;
    struct held *held = hold(D);
    if (!held) return;
    held->clone = clone;
    held->state = *D;
    keep(&held->state, D, D->clone_list, {EGRESS_CLONE});
    memcpy(held->bytes + D->at, D->packet + D->at, D->length - D->at);
    held->state.packet = held->bytes;
    held->state.held = 1;
    held->state.truncate = UINT32_MAX;
    held->state.tail = NULL;
    memset(held->state.summed, 0, sizeof held->state.summed);
}}
"""

EMIT_HELD = """
// What lies behind the headers goes away before it is sent, so it is copied.
static void emit_held(struct state *D, uint32_t port, uint8_t *head, uint32_t bytes) {
    const uint32_t rest = D->length - D->at;
    bytes += deparse_tail(D, head + bytes);
    memcpy(head + bytes, D->packet + D->at, rest);
    bytes = D->truncate < bytes + rest ? D->truncate : bytes + rest;
    services(D->core)->emit(D->core, port, head, bytes, head, 0, head, 0);
}
"""

SEND_CLONE = """
static void send_clone(struct state *D, uint32_t clone) {
    const struct session *session = services(D->core)->session(D->core, clone & SESSION_MAX);
    if (!session) return;
    if (session->length) D->truncate = session->length;
    replicate(D, session->targets);
}
"""

RESUBMIT = f"""
static void resubmit(struct state *D) {{
    struct held *held = hold(D);
    if (!held) return;
    memcpy(held->bytes, D->packet, D->length);
    held->clone = 0;
    held->length = D->length;
    keep(&held->state, D, D->resubmit, {RESUBMITTED});
}}
"""

RECIRCULATE = f"""
static void recirculate(struct state *D) {{
    const uint32_t rest = D->length - D->at;
    struct held *held = hold(D);
    if (!held) return;
    uint32_t length = deparse_head(D, held->bytes);
    length += deparse_tail(D, held->bytes + length);
    if (length + rest > PACKET_MAX) {{
        whole(D)->count--;
        services(D->core)->drop(D->core, DROP_RECEIVED_TOO_LONG);
        return;
    }}
    memcpy(held->bytes + length, D->packet + D->at, rest);
    held->clone = 0;
    held->length = length + rest;
    keep(&held->state, D, D->recirculate, {RECIRCULATED});
}}
"""

PROCESS = f"""
static void again(struct whole *all) {{
    struct held *held = &all->held[all->first];
    struct state *D = &all->now;
    if (held->clone) {{
        send_clone(&held->state, held->clone);
    }} else {{
        D->held = 1;
        anew(D, held->bytes, held->length);
        take_over(D, &held->state);
        way(D);
    }}
    all->first = (all->first + 1) % {HELD};
    all->count--;
}}

static void process(struct core *core, struct instance *in, uint32_t port, const uint8_t *packet, uint32_t length) {{
    struct whole *all = in->state;
    struct state *D = &all->now;
    D->core = core; D->in = in; D->packet = packet; D->length = length; D->size = length; D->port = port; D->held = 0;
    arrive(D, port);
    way(D);
    for (uint32_t i = 0; all->count && i < {PASSES}; i++) again(all);
    for (; all->count; all->count--) services(core)->drop(core, DROP_TOO_MANY_PASSES);
    all->first = 0;
}}
"""


def function(head: str, body: list[str]) -> list[str]:
    """A C function."""
    return [f"static {head} {{", *[f"    {line}" for line in body], "}"]


def _text(block: str) -> list[str]:
    return block.strip("\n").splitlines()


class CopyWriter:
    """Writes what copies need."""

    def __init__(self, layout: Layout) -> None:
        """The layout's program."""
        self._layout = layout
        self._program = layout.program

    def before_egress(self) -> list[str]:
        """What egress calls; after the deparser."""
        return [*_text(STRUCTS), *self._keep(), *_text(CLONE_EGRESS), *_text(RECIRCULATE), *_text(EMIT_HELD)]

    def after_egress(self) -> list[str]:
        """What ingress calls; after `replicate`."""
        return [*self._anew(), *self._take_over(), *_text(SEND_CLONE), *self._clone_ingress(), *_text(RESUBMIT)]

    def process(self) -> list[str]:
        """What is called for a packet; after `way`, which is from the parser to the queues."""
        return _text(PROCESS)

    def _metadata(self) -> list[str]:
        """The members of `struct state` that hold metadata."""
        names = [name for name, header in self._program.headers.items() if header.metadata]
        return [self._layout.header(name).struct.removeprefix("D->") for name in names]

    def _keep(self) -> list[str]:
        """The metadata of a copy `C` of `D`."""
        cases = [line for fields in self._program.field_lists.values() for line in self._case(fields)]
        return function(
            "void keep(struct state *C, const struct state *D, uint32_t list, uint32_t type)",
            [
                *[f"memset(&C->{member}, 0, sizeof C->{member});" for member in self._metadata()],
                "(void)D;",
                "switch (list) {",
                *cases,
                "}",
                *self._layout.set_meta("instance_type", "type", "C"),
            ],
        )

    def _case(self, fields: FieldList) -> list[str]:
        members = [self._member(field) for field in fields.fields]
        copies = [f"    memcpy(&C->{one}, &D->{one}, sizeof C->{one});" for one in members]
        return [f"case {fields.id}:", *copies, "    break;"]

    def _member(self, field: FieldOf) -> str:
        ref = self._layout.header(field.header)
        return ref.field(ref.type.field(field.field)).removeprefix("D->")

    def _anew(self) -> list[str]:
        """A state before the parser: nothing valid, all metadata zero."""
        clear = [f"memset(&D->{member}, 0, sizeof D->{member});" for member in self._metadata()]
        head = "void anew(struct state *D, const uint8_t *packet, uint32_t length)"
        return function(
            head, ["D->packet = packet; D->length = length; D->size = length;", *clean(self._layout), *clear]
        )

    def _take_over(self) -> list[str]:
        """The metadata that a packet which is parsed again brings along."""
        taken = [f"D->{member} = from->{member};" for member in self._metadata()]
        head = "void take_over(struct state *D, const struct state *from)"
        return function(head, [*taken, *self._layout.set_meta("packet_length", "D->length")])

    def _clone_ingress(self) -> list[str]:
        """As the packet came in, parsed again, with no metadata but the port to go by."""
        return function(
            "void clone_ingress(struct state *D)",
            [
                "const uint32_t clone = D->clone;",
                "struct state *C = &whole(D)->clone;",
                "D->clone = 0;",
                "if (!services(D->core)->session(D->core, clone & SESSION_MAX)) return;",
                "C->core = D->core; C->in = D->in; C->port = D->port; C->held = D->held;",
                "anew(C, D->packet, D->length);",
                *self._layout.set_meta("ingress_port", "D->port", "C"),
                "(void)parse(C);",
                f"keep(C, D, D->clone_list, {INGRESS_CLONE});",
                "send_clone(C, clone);",
            ],
        )


def clean(layout: Layout) -> list[str]:
    """Statements for a state in which nothing has happened to the packet yet, but for its metadata."""
    lines = [f"memset(D->{member}, 0, sizeof D->{member});" for member in ("valid", "summed", "next")]
    lines += [
        f"memset(&D->{META}_, 0, sizeof D->{META}_);",
        "D->at = 0; D->exit = 0; D->learn = 0; D->truncate = UINT32_MAX; D->tail = NULL;",
    ]
    variable = [name for name, header in layout.program.headers.items() if header.type.variable]
    lines += [f"{layout.header(name).bits} = 0;" for name in variable]  # none before one is extracted or assigned
    return [*lines, "D->clone = 0; D->resubmit = 0; D->recirculate = 0;"] if layout.copies else lines


def emit_clone(low: Lowering, arguments: tuple[Expression, ...]) -> None:
    """At the end of the pipeline; the last one counts."""
    session, fields = arguments
    low.block.add(f"D->clone = ((uint32_t){low.narrow(session, 16)} & SESSION_MAX) | SESSION_SET;")
    low.block.add(f"D->clone_list = {_list(low, fields)};")


def emit_resubmit(low: Lowering, arguments: tuple[Expression, ...]) -> None:
    """At the end of ingress."""
    low.block.add(f"D->resubmit = {_list(low, arguments[0])};")


def emit_recirculate(low: Lowering, arguments: tuple[Expression, ...]) -> None:
    """After the deparser."""
    low.block.add(f"D->recirculate = {_list(low, arguments[0])};")


def _list(low: Lowering, expression: Expression) -> int:
    """The number of a field list."""
    if isinstance(expression, Constant) and expression.value in low.layout.program.field_lists:
        return expression.value
    raise low.refuse(f"{expression} as a field list")
