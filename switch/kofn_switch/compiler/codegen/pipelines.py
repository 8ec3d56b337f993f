"""Actions and pipelines in C: a function for each action, and one for each pipeline with a label for each node."""

from kofn_switch.compiler.codegen import tracing
from kofn_switch.compiler.codegen.block import Block, CodeUnit
from kofn_switch.compiler.codegen.indirect import emit_choice, member_numbers
from kofn_switch.compiler.codegen.layout import Layout
from kofn_switch.compiler.codegen.lowering import Lowering
from kofn_switch.compiler.codegen.matching import emit_lookup, is_call, numbered, parameter_limbs, stored_limbs, words
from kofn_switch.compiler.codegen.operators import Translator
from kofn_switch.compiler.codegen.primitives import JUMPS, PRIMITIVES, Arguments, rule_for
from kofn_switch.compiler.ir.expressions import Constant
from kofn_switch.compiler.ir.program import Action, Condition, Pipeline, Primitive, Program, Table
from kofn_switch.errors import ProgramError


def used_actions(program: Program) -> list[Action]:
    """Return the actions that a table can run."""
    used = {action.id: action for table in program.tables for action in table.actions}
    return [used[number] for number in sorted(used)]


def leaves(action: Action) -> bool:
    """Return whether an action may end the control."""
    return any(primitive.op in PRIMITIVES and PRIMITIVES[primitive.op].leaves for primitive in action.primitives)


def write_action(layout: Layout, unit: CodeUnit, action: Action) -> list[str]:
    """Return `static inline void action_<id>(struct state *D, const uint64_t *p)`."""
    block = Block(unit)
    targets = _jump_targets(action)
    for number, primitive in enumerate(action.primitives):
        if number in targets:
            block.lines.append(f"at_{number}:;")
        _write_primitive(layout, block, action, primitive)
    if len(action.primitives) in targets:
        block.lines.append(f"at_{len(action.primitives)}:;")
    head = f"static inline void action_{action.id}(struct state *D, const uint64_t *p) {{  // {action.name}"
    return [head, "    (void)D, (void)p;", *block.lines, "}"]


def _write_primitive(layout: Layout, block: Block, action: Action, primitive: Primitive) -> None:
    low = Translator(layout, block, place=primitive.place, parameters=action.parameters)
    with block.braces(), tracing.watched(low, primitive):
        if primitive.op in JUMPS:
            _write_jump(low, primitive.op, primitive.arguments)
        else:
            rule_for(primitive.op, low).emit(low, primitive.arguments)


def _write_jump(low: Lowering, op: str, arguments: Arguments) -> None:
    target = arguments[-1]
    if not isinstance(target, Constant):
        raise low.refuse("a jump to a computed place")
    if op == "_jump":
        low.block.add(f"goto at_{target.value};")
        return
    condition = arguments[0]
    holds = low.truth(condition) if low.is_truth(condition) else f"({low.exact_amount(condition)} != 0)"
    low.block.add(f"if (!{holds}) goto at_{target.value};")


def _jump_targets(action: Action) -> set[int]:
    ends = [primitive.arguments[-1] for primitive in action.primitives if primitive.op in JUMPS]
    return {end.value for end in ends if isinstance(end, Constant)}


class PipelineWriter:
    """Writes `static void <name>(struct state *D)`."""

    def __init__(self, layout: Layout, unit: CodeUnit, pipeline: Pipeline) -> None:
        """Make a writer for one of the program's pipelines."""
        self._layout = layout
        self._pipeline = pipeline
        self._block = Block(unit)
        nodes = [*pipeline.tables, *pipeline.conditions]
        self._labels = {name: f"node_{number}" for number, name in enumerate(nodes)}
        self._numbers = numbered(layout.program)
        self._actions = layout.program.actions

    def write(self) -> list[str]:
        tracing.say(self._layout, self._block, f"\n{self._pipeline.name}")
        self._block.add(self._goto(self._pipeline.start))
        for table in self._pipeline.tables.values():
            self._node(table.name)
            if is_call(table):
                self._call(table)
            else:
                self._table(table)
            self._block.add("}")
        for condition in self._pipeline.conditions.values():
            self._node(condition.name)
            self._condition(condition)
            self._block.add("}")
        self._block.lines.append("end:;")
        return [f"static void {self._pipeline.name}(struct state *D) {{", *self._block.lines, "}"]

    def _node(self, name: str) -> None:
        self._block.lines.append(f"{self._labels[name]}: {{  // {name}")

    def _goto(self, name: str | None) -> str:
        return f"goto {self._labels[name] if name is not None else 'end'};"

    def _condition(self, condition: Condition) -> None:
        low = Translator(self._layout, self._block, place=condition.place)
        tracing.condition(low, condition)
        self._block.add(f"if ({low.truth(condition.expression)}) {self._goto(condition.then)}")
        self._block.add(self._goto(condition.otherwise))

    def _run(self, action: Action, parameters: str) -> None:
        self._block.add(f"action_{action.id}(D, {parameters});")
        if leaves(action):
            self._block.add("if (D->exit) goto end;")

    def _call(self, table: Table) -> None:
        assert table.default_action is not None
        action = self._actions[table.default_action]
        values = [
            w
            for value, p in zip(table.default_parameters, action.parameters, strict=True)
            for w in words(value, p.width)
        ]
        self._run(action, self._block.unit.constant(tuple(values)) if values else "NULL")
        self._block.add(self._goto(table.next_on_hit[1] if table.next_on_hit else table.next.get(action.id)))

    def _table(self, table: Table) -> None:
        low = Translator(self._layout, self._block, place=table.place)
        tracing.comment(self._layout, self._block, table.place)
        emit_lookup(self._layout, self._block, table, self._numbers[table.name])
        tracing.lookup(low, table)
        numbers = {action.id: action.id for action in table.actions}
        chosen, limbs = "entry", f"entry->limbs + {stored_limbs(table)}"
        if table.profile is not None:
            emit_choice(low, table)
            chosen, limbs = "member", "member->limbs"
            numbers = member_numbers(self._layout.program, table)
        with self._block.braces(f"switch ({chosen}->action)"):
            for action in table.actions:
                self._block.add(f"case {numbers[action.id]}:")
                tracing.chosen(self._layout, self._block, action, f"({limbs})")
                self._run(action, limbs if parameter_limbs(action) else "NULL")
                self._block.add("break;" if table.next_on_hit else self._goto(table.next.get(action.id)))
        if table.next_on_hit:
            hit, miss = table.next_on_hit
            self._block.add(f"if (hit) {self._goto(hit)}", self._goto(miss))
        else:
            self._block.add("(void)hit;", self._goto(table.next_default) if table.may_do_nothing else "goto end;")


def check_nodes(pipeline: Pipeline) -> None:
    """Raise ProgramError when a node leads to a node that does not exist."""
    known = {None, *pipeline.tables, *pipeline.conditions}
    ends = [next_ for table in pipeline.tables.values() for next_ in table.next.values()]
    ends += [end for table in pipeline.tables.values() for end in (table.next_default, *(table.next_on_hit or ()))]
    ends += [end for condition in pipeline.conditions.values() for end in (condition.then, condition.otherwise)]
    for name in ends:
        if name not in known:
            raise ProgramError(f"pipeline {pipeline.name}: there is no node {name}")
