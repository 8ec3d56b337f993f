"""Liveness of metadata: only fields that may be read before they are written are zeroed for each packet.

The analysis goes backwards over the graph parser -> ingress -> digest -> egress -> checksums. A field is (header,
field).
"""

from collections.abc import Callable, Iterable

from kofn_switch.compiler.analysis.keeping import kept_headers
from kofn_switch.compiler.codegen.primitives import JUMPS, PRIMITIVES
from kofn_switch.compiler.ir.expressions import (
    Element,
    ElementField,
    Expression,
    FieldOf,
    HeaderOf,
    LastField,
    StackOf,
    UnionOf,
    UnionStackOf,
    walk,
)
from kofn_switch.compiler.ir.program import Action, Checksum, ParserState, Pipeline, Primitive, Program, Table

Fields = frozenset[tuple[str, str]]
Before = Callable[[str | None], Fields]  # returns the fields that are live before a node; None is the end
NONE: Fields = frozenset()


def reads(*expressions: Expression | None) -> Fields:
    """Return the header fields in the expressions."""
    return frozenset(
        (part.header, part.field)
        for expression in expressions
        if expression is not None
        for part in walk(expression)
        if isinstance(part, FieldOf)
    )


def mentioned(program: Program) -> Fields:
    """Return all fields that the program names anywhere."""
    pipelines = (program.ingress, program.egress)
    primitives = [primitive for action in program.actions.values() for primitive in action.primitives]
    primitives += [statement for state in program.states.values() for statement in state.statements]
    primitives += program.deparser_statements
    return frozenset[tuple[str, str]]().union(
        *(reads(*primitive.arguments) for primitive in primitives),
        *(reads(*(part for part, _ in state.key)) for state in program.states.values()),
        *(reads(condition.expression) for pipeline in pipelines for condition in pipeline.conditions.values()),
        *(reads(*(field.target for field in table.key)) for table in program.tables),
        *(reads(*digest.elements) for digest in program.digests),
        *(_checksum_reads(checksum) for checksum in program.checksums),
        _selector_reads(program),
        _kept(program),
    )


def writes(primitive: Primitive) -> list[Expression]:
    """Return the arguments that a primitive sets."""
    rule = PRIMITIVES.get(primitive.op)
    if rule is None:
        return []
    return [primitive.arguments[position] for position in rule.writes if position < len(primitive.arguments)]


def _before(primitives: Iterable[Primitive], after: Fields) -> Fields:
    """Return the fields that are read before they are set, in a sequence or after it (`after`)."""
    live = after
    for primitive in reversed(list(primitives)):
        targets = writes(primitive)
        whole = {(target.header, target.field) for target in targets if isinstance(target, FieldOf)}
        if primitive.op in PRIMITIVES and PRIMITIVES[primitive.op].certain:
            live -= whole
        others = [argument for argument in primitive.arguments if argument not in targets]
        inside = [target.index for target in targets if isinstance(target, ElementField | Element)]
        live |= reads(*others, *inside)
        if PRIMITIVES.get(primitive.op) is not None and PRIMITIVES[primitive.op].leaves:
            live |= after
    return live


def _before_action(action: Action, after: Fields) -> Fields:
    if any(primitive.op in JUMPS for primitive in action.primitives):
        return after.union(*(reads(*primitive.arguments) for primitive in action.primitives))
    return _before(action.primitives, after)


def live_at_start(program: Program) -> Fields:
    """Return the fields that must be zero when a packet arrives: fields of metadata except standard_metadata, and
    fields of headers that keep their fields while they are invalid (analysis/keeping.py)."""
    checksums, kept = program.checksums, kept_headers(program)
    after_egress = NONE.union(*(_checksum_reads(item) for item in checksums), _kept(program))
    after_egress |= _before(program.deparser_statements, NONE)
    egress = _before_pipeline(program.egress, after_egress)
    digests = reads(*(element for digest in program.digests for element in digest.elements))
    ingress = _before_pipeline(program.ingress, egress | digests | after_egress)
    start = _before_parser(program, ingress | after_egress | _selector_reads(program))
    return frozenset(
        (header, field)
        for header, field in start
        if (program.headers[header].metadata and header != "standard_metadata")
        or (header in kept and field != "$valid$")
    )


def _kept(program: Program) -> Fields:
    """Return the fields that clones, resubmitted and recirculated packets keep."""
    return reads(*(field for fields in program.field_lists.values() for field in fields.fields))


def _checksum_reads(checksum: Checksum) -> Fields:
    inputs = [part[0] for part in checksum.calculation.inputs if part is not None]
    return reads(checksum.condition, *inputs)


def _selector_reads(program: Program) -> Fields:
    """Return the fields that selectors hash. They are few, so every table is taken to read them."""
    selectors = [profile.selector for profile in program.profiles.values() if profile.selector is not None]
    return reads(*(part[0] for selector in selectors for part in selector.inputs if part is not None))


def _before_pipeline(pipeline: Pipeline, end: Fields) -> Fields:
    memory: dict[str | None, Fields] = {None: end}

    def before(name: str | None) -> Fields:
        if name not in memory:
            memory[name] = _before_node(pipeline, str(name), before)
        return memory[name]

    for name in _post_order(pipeline):
        before(name)
    return before(pipeline.start)


def _successors(pipeline: Pipeline, name: str) -> list[str | None]:
    if name in pipeline.conditions:
        return [pipeline.conditions[name].then, pipeline.conditions[name].otherwise]
    table = pipeline.tables[name]
    return [*table.next.values(), *(table.next_on_hit or ()), *_skipped(table)]


def _skipped(table: Table) -> list[str | None]:
    """Return the node after a table that runs no action."""
    return [table.next_default] if table.may_do_nothing else []


def _post_order(pipeline: Pipeline) -> list[str]:
    """Return nodes after all their successors, without recursion: pipelines can be thousands of nodes long."""
    order: list[str] = []
    seen: set[str | None] = {None}
    stack: list[tuple[str, bool]] = [(pipeline.start, False)] if pipeline.start is not None else []
    while stack:
        name, done = stack.pop()
        if done:
            order.append(name)
        elif name not in seen:
            seen.add(name)
            stack.append((name, True))
            stack += [(item, False) for item in _successors(pipeline, name) if item is not None and item not in seen]
    return order


def _before_node(pipeline: Pipeline, name: str, before: Before) -> Fields:
    if name in pipeline.conditions:
        condition = pipeline.conditions[name]
        return reads(condition.expression) | before(condition.then) | before(condition.otherwise)
    return _before_table(pipeline.tables[name], before)


def _before_table(table: Table, before: Before) -> Fields:
    live = reads(*(field.target for field in table.key)).union(*(before(name) for name in _skipped(table)))
    for action in table.actions:
        if table.next_on_hit:
            after = before(table.next_on_hit[0]) | before(table.next_on_hit[1])
        else:
            after = before(table.next.get(action.id))
        live |= _before_action(action, after)
    return live


def _before_parser(program: Program, end: Fields) -> Fields:
    """Repeat until nothing changes, because a parser may loop."""
    live: dict[str | None, Fields] = dict.fromkeys(program.states, end)
    live[None] = end
    changed = True
    while changed:
        changed = False
        for state in program.states.values():
            new = live[state.name] | _before_state(state, live, end)
            changed |= new != live[state.name]
            live[state.name] = new
    return live[program.parser_start]


def _before_state(state: ParserState, live: dict[str | None, Fields], end: Fields) -> Fields:
    after = end.union(*(live[transition.next] for transition in state.transitions))
    return _before(state.statements, after | reads(*(part for part, _ in state.key)))


def egress_writes(program: Program) -> tuple[Fields, frozenset[str], frozenset[str]]:
    """Return the fields, whole headers and whole header stacks that egress and the deparser may change."""
    fields = {(item.target.header, item.target.field) for item in program.checksums if item.update}
    headers: set[str] = set()
    stacks: set[str] = set()
    used = {action.id: action for table in program.egress.tables.values() for action in table.actions}
    targets = (table.meter.target for table in program.egress.tables.values() if table.meter is not None)
    fields |= {(target.header, target.field) for target in targets}
    statements = [primitive for action in used.values() for primitive in action.primitives]
    for target in (one for primitive in (*statements, *program.deparser_statements) for one in writes(primitive)):
        match target:
            case FieldOf(header, field):
                fields.add((header, field))
            case HeaderOf(header):
                headers |= _with_rivals(program, header)
            case UnionOf(union):
                headers |= set(program.unions[union].members.values())
            case UnionStackOf(stack):
                unions = program.union_stacks[stack].unions
                headers |= {member for union in unions for member in program.unions[union].members.values()}
            case StackOf(stack) | Element(stack, _) | ElementField(stack, _, _) | LastField(stack, _):
                stacks.add(stack)
    return frozenset(fields), frozenset(headers), frozenset(stacks)


def _with_rivals(program: Program, header: str) -> set[str]:
    """Return the header, and the headers that become invalid when it becomes valid."""
    for union in program.unions.values():
        if header in union.members.values():
            return set(union.members.values())
    return {header}
