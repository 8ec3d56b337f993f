"""The processing of a packet in C: parse, verify, ingress, digest, then egress, checksums and deparser for each copy.

Copies of a multicast share everything that egress cannot change. The unchanged headers at the end of the deparser's
order are written once for all copies (the tail), and the payload is never copied. Between two copies only the values
that egress may change are restored.
"""

from kofn_switch.compiler.codegen import tracing
from kofn_switch.compiler.codegen.block import Block, CodeUnit
from kofn_switch.compiler.codegen.copies import CopyWriter, clean, function
from kofn_switch.compiler.codegen.digests import learn
from kofn_switch.compiler.codegen.hashing import emit_update, emit_verify
from kofn_switch.compiler.codegen.layout import META, Layout, identifier
from kofn_switch.compiler.codegen.liveness import egress_writes, live_at_start
from kofn_switch.compiler.codegen.operators import Translator
from kofn_switch.compiler.codegen.primitives import rule_for
from kofn_switch.compiler.codegen.queues import QueueWriter
from kofn_switch.compiler.codegen.standard_metadata import StandardMetadata
from kofn_switch.compiler.ir.expressions import Expression, FieldOf
from kofn_switch.compiler.ir.program import PORTS, Program

REPLICATION = 5  # instance_type of a multicast copy
COPIED_TAIL = 2048  # a tail of up to this number of bytes is copied, which is faster than sending one more part


class ProcessWriter:
    """Writes `process` and the functions that it calls."""

    def __init__(self, layout: Layout, unit: CodeUnit) -> None:
        self._layout = layout
        self._unit = unit
        self._program: Program = layout.program
        self._metadata = StandardMetadata(layout)
        self._queues = QueueWriter(layout, self._metadata)
        self._fields, self._headers, self._stacks = egress_writes(layout.program)

    @property
    def queued(self) -> bool:
        """Whether the program reads metadata that only queues provide."""
        return self._queues.read

    def write(self) -> list[str]:
        return [
            *self._verify(),
            *learn(self._layout, self._unit),
            *self._update(),
            *self._finish(),
            *self._saved(),
            *self._deparse("head", self._order()[0]),
            *self._deparse("tail", self._order()[1]),
            *(self._with_copies() if self._layout.copies else self._without_copies()),
        ]

    def _without_copies(self) -> list[str]:
        head = (
            "void process(struct core *core, struct instance *in, uint32_t port, const uint8_t *packet, "
            "uint32_t length)"
        )
        body = [
            "struct state *D = in->state;",
            "D->core = core; D->in = in; D->packet = packet; D->length = length; D->size = length;",
            "arrive(D, port);",
            *self._way("core"),
        ]
        return [*self._egress_copy(), *self._arrive(), *function(head, body)]

    def _with_copies(self) -> list[str]:
        return [
            *CopyWriter(self._layout).write(),
            *self._egress_copy(),
            *function("void replicate(struct state *D, const struct group *group)", self._replicate()),
            *self._arrive(),
            *function("void way(struct state *D)", self._way("D->core")),
        ]

    def _verify(self) -> list[str]:
        block = Block(self._unit)
        block.add("uint32_t bad = 0;", "(void)D;")
        for checksum in self._program.checksums:
            if checksum.verify:
                emit_verify(Translator(self._layout, block, place=checksum.place), checksum)
        return ["static inline uint32_t verify_checksums(struct state *D) {", *block.lines, "    return bad;", "}"]

    def _update(self) -> list[str]:
        block = Block(self._unit)
        block.add("(void)D;")
        for number, checksum in enumerate(self._program.checksums):
            if checksum.update:
                low = Translator(self._layout, block, place=checksum.place)
                emit_update(low, checksum, str(number), self._is_constant)
        return ["static inline void update_checksums(struct state *D) {", *block.lines, "}"]

    def _finish(self) -> list[str]:
        block = Block(self._unit)
        for statement in self._program.deparser_statements:
            low = Translator(self._layout, block, place=statement.place)
            with block.braces(), tracing.watched(low, statement):
                rule_for(statement.op, low).emit(low, statement.arguments)
        return ["static inline void finish(struct state *D) {", *block.lines, "}"] if block.lines else []

    def _is_constant(self, expression: Expression) -> bool:
        """Return whether a field stays the same in all copies of a packet: neither egress nor a checksum changes it."""
        if not isinstance(expression, FieldOf) or expression.header == META:
            return False
        stack = self._layout.in_stack(expression.header)
        return not (
            expression.header in self._headers
            or (stack is not None and stack[0] in self._stacks)
            or self._fields & {(expression.header, expression.field), (expression.header, "$valid$")}
        )

    # Copies

    def _saved(self) -> list[str]:
        """Define the values that egress may change, and how to save and restore them between copies."""
        members = [f"__typeof__({lvalue}) m{n};" for n, lvalue in enumerate(self._changed())]
        puts = [f"memcpy(&saved->m{n}, &{lvalue}, sizeof saved->m{n});" for n, lvalue in enumerate(self._changed())]
        gets = [f"memcpy(&{lvalue}, &saved->m{n}, sizeof saved->m{n});" for n, lvalue in enumerate(self._changed())]
        return [
            "struct saved {",
            "    uint32_t size, truncate;",
            *[f"    {member}".replace("D->", "((struct state *)0)->") for member in members],
            "};",
            *function(
                "inline void put_aside(struct state *D, struct saved *saved)",
                ["saved->size = D->size;", "saved->truncate = D->truncate;", *puts],
            ),
            *function(
                "inline void put_back(struct state *D, const struct saved *saved)",
                ["D->size = saved->size;", "D->truncate = saved->truncate;", *gets],
            ),
        ]

    def _changed(self) -> list[str]:
        """Return lvalues of all that egress may change, standard metadata included."""
        whole = sorted(
            {name for name in self._headers if name != META}
            | {header for header, field in self._fields if field == "$valid$"}
        )
        fields = sorted((h, f) for h, f in self._fields if h not in self._headers and h != META and f != "$valid$")
        result = [f"D->{META}_", "D->valid", "D->next"]
        result += [f"D->{identifier(stack)}" for stack in sorted(self._stacks)]
        result += [self._layout.header(name).struct for name in whole]
        for header, field in fields:
            ref = self._layout.header(header)
            result.append(ref.field(ref.type.field(field)))
            if ref.type.field(field).variable:
                result.append(ref.bits)
        return result

    def _order(self) -> tuple[list[str], list[str]]:
        """Return the deparser's headers that each copy writes, and the headers that are written once for all copies."""
        changed = {header for header, _ in self._fields} | self._headers
        changed |= {member for name in self._stacks for member in self._program.stacks[name].members}
        order = list(self._program.deparser)
        first = len(order)
        while first > 0 and order[first - 1] not in changed:
            first -= 1
        return order[:first], order[first:]

    def _deparse(self, name: str, headers: list[str]) -> list[str]:
        body = ["uint8_t *at = to;", "(void)D;"]
        for header in headers:
            ref = self._layout.header(header)
            write = f"write_{identifier(ref.type.name)}(at, &{ref.struct}); at += {ref.bytes};"
            body.append(f"if ({ref.valid}) {{ {write} }}")
        size = sum(self._program.headers[header].type.width // 8 for header in headers)
        return [
            f"#define {name.upper()}_BYTES {size}",
            *function(
                f"inline uint32_t deparse_{name}(struct state *D, uint8_t *to)", [*body, "return (uint32_t)(at - to);"]
            ),
        ]

    def _egress_copy(self) -> list[str]:
        """Write the functions by which one copy enters the queue of `port` and leaves it. Without queues the copy goes
        on at once."""
        return [*self._leave(), *self._queues.enqueue(), *self._queues.depart()]

    def _leave(self) -> list[str]:
        """Write the function by which one copy passes egress and leaves through `port`; the first copy that is sent
        writes the tail."""
        copies, drop_port = self._layout.copies, self._layout.target.drop_port
        asserted = "if (D->exit == 2) { services(D->core)->drop(D->core, DROP_ASSERTION); return; }"
        body = [
            *tracing.egress(self._layout),
            *self._layout.set_meta("egress_port", "port"),
            *self._layout.set_meta("egress_spec", str((drop_port + 1) % PORTS)),
            *self._layout.set_meta("packet_length", "D->size"),
            *self._metadata.timestamps("now_us(D->core)", "egress_global_timestamp"),
            "D->exit = 0;",
            *(["D->clone = 0; D->recirculate = 0;"] if copies else []),
            "egress(D);",
            asserted,
            *(["if (D->clone) clone_egress(D);"] if copies else []),
            f"if ({self._metadata.field('egress_spec')} == {drop_port}) "
            "{ services(D->core)->drop(D->core, DROP_EGRESS); return; }",
            "update_checksums(D);",
            *(["finish(D);", asserted] if self._program.deparser_statements else []),
            *(["if (D->recirculate) { recirculate(D); return; }"] if copies else []),
            *self._emit(),
        ]
        return function("void leave(struct state *D, uint32_t port)", body)

    def _emit(self) -> list[str]:
        held = self._layout.copies
        room = "HEAD_BYTES + TAIL_BYTES" + (" + (D->held ? D->length : 0)" if held else "")
        return [
            f"uint8_t *head = services(D->core)->reserve(D->core, {room});",
            "uint32_t head_bytes = deparse_head(D, head);",
            *(["if (D->held) { emit_held(D, port, head, head_bytes); return; }"] if held else []),
            *self._share_tail(),
            "uint32_t tail_bytes = D->tail_bytes, rest = D->length - D->at;",
            "if (D->truncate < head_bytes) head_bytes = D->truncate;",
            "if (D->truncate - head_bytes < tail_bytes) tail_bytes = D->truncate - head_bytes;",
            "if (D->truncate - head_bytes - tail_bytes < rest) rest = D->truncate - head_bytes - tail_bytes;",
            "services(D->core)->emit(D->core, port, head, head_bytes, tail, tail_bytes, D->packet + D->at, rest);",
            "if (D->truncate != UINT32_MAX) D->tail = NULL;",
        ]

    def _share_tail(self) -> list[str]:
        """Share the tail: the first copy since the last flush writes the tail after the copy's head; later copies copy
        this tail or refer to it."""
        return [
            "uint8_t *own = head + head_bytes;",
            "const uint8_t *tail = own;",
            "if (!D->tail || D->flushes != services(D->core)->flushes) {",
            "    D->flushes = services(D->core)->flushes;",
            "    D->tail = own;",
            "    D->tail_bytes = deparse_tail(D, own);",
            f"}} else if (D->tail_bytes <= {COPIED_TAIL}) {{",
            "    memcpy(own, D->tail, D->tail_bytes);",
            "} else {",
            "    tail = D->tail;",
            "}",
        ]

    # The whole function

    def _arrive(self) -> list[str]:
        """Prepare the state: zero the fields that may be read before they are written, and leave all other fields."""
        rows = self._layout.kept_rows()
        zero = [f"memset(D->{identifier(row)}, 0, sizeof D->{identifier(row)});" for row in rows]
        for header, name in sorted(live_at_start(self._program)):
            if self._layout.in_stack(header) is not None:
                continue
            ref = self._layout.header(header)
            field = ref.type.field(name)
            member = ref.field(field)
            zero.append(f"{member} = 0;" if field.width <= 64 else f"memset({member}, 0, sizeof {member});")
        body = [
            *clean(self._layout),
            *self._layout.set_meta("ingress_port", "port"),
            *self._layout.set_meta("packet_length", "D->length"),
            *self._metadata.timestamps("arrived_us", "ingress_global_timestamp"),
            *zero,
        ]
        return function("inline void arrive(struct state *D, uint32_t port)", ["(void)port;", *body])

    def _way(self, core: str) -> list[str]:
        """Write the statements from the parser to the queues; without queues each copy goes on at once."""
        group, copies = self._metadata.field("mcast_grp"), self._layout.copies
        return [
            "const uint32_t error = parse(D);",
            *tracing.parsed(self._layout),
            *(self._layout.set_meta("parser_error", "error") or ["(void)error;"]),
            *(self._layout.set_meta("checksum_error", "verify_checksums(D)") or ["(void)verify_checksums;"]),
            "ingress(D);",
            f"if (D->exit == 2) {{ services({core})->drop({core}, DROP_ASSERTION); return; }}",
            *(["if (D->clone) clone_ingress(D);"] if copies else []),
            "if (D->learn) learn(D);",
            *(["if (D->resubmit) { resubmit(D); return; }"] if copies else []),
            f"if ({group} != 0) {{",
            *[f"    {line}" for line in self._multicast(core, group)],
            f"}} else if ({self._metadata.field('egress_spec')} == {self._layout.target.drop_port}) {{",
            f"    services({core})->drop({core}, DROP_INGRESS);",
            "} else {",
            *(f"    {line}" for line in self._unicast()),
            "}",
        ]

    def _unicast(self) -> list[str]:
        normal = self._layout.set_meta("instance_type", "0") if self._metadata.mentions("instance_type") else []
        return [*normal, f"egress_copy(D, {self._metadata.field('egress_spec')});"]

    def _multicast(self, core: str, group: str) -> list[str]:
        """Send a copy to each member of the group that the C expression `group` names. A truncation by
        ingress does not apply to the copies."""
        return [
            f"const struct group *group = services({core})->group({core}, {group});",
            f"if (!group) {{ services({core})->drop({core}, DROP_UNKNOWN_GROUP); return; }}",
            *self._layout.set_meta("instance_type", str(REPLICATION)),
            *(["D->truncate = UINT32_MAX;"] if self._program.uses("truncate") else []),
            *(["replicate(D, group);"] if self._layout.copies else self._replicate()),
        ]

    def _replicate(self) -> list[str]:
        return [
            "struct saved saved;",
            "put_aside(D, &saved);",
            "for (uint32_t i = 0; i < group->size; i++) {",
            "    if (i > 0) put_back(D, &saved);",
            *[f"    {line}" for line in self._layout.set_meta("egress_rid", "group->replicas[i].instance")],
            "    egress_copy(D, group->replicas[i].port);",
            "}",
        ]
