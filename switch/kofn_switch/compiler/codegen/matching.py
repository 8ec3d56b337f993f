"""Tables in C: keys, look-ups, and an entry's match in limbs.

An exact table stores an entry's key. All other tables store the values of all fields, then their masks, then the
runtime's own limbs (runtime/table.h); a range field has its low bound as value and its high bound as mask. `numbered`
numbers the tables that the control plane can see; a table that can only miss is called directly.
"""

from collections.abc import Iterable, Sequence

from kofn_switch.compiler.codegen.block import Block
from kofn_switch.compiler.codegen.layout import Layout, limbs, literal, mask_of
from kofn_switch.compiler.codegen.lowering import Lowering
from kofn_switch.compiler.codegen.operators import Translator
from kofn_switch.compiler.ir.program import Action, KeyField, Parameter, Program, Table

Pair = tuple[int, int]


def is_call(table: Table) -> bool:
    """Return whether a table is only p4c's way to write a call of its default action."""
    return not table.key and table.default_const and not table.counted


def numbered(program: Program) -> dict[str, int]:
    """Return the tables that exist at run time, with their numbers."""
    return {table.name: number for number, table in enumerate(t for t in program.tables if not is_call(t))}


def key_limbs(table: Table) -> int:
    """Return the number of limbs of a look-up key."""
    return sum(limbs(field.width) for field in table.key)


def stored_limbs(table: Table) -> int:
    """Return the number of limbs of an entry's match."""
    return key_limbs(table) * 2 + 2 if table.ordered else key_limbs(table)


def parameter_limbs(action: Action) -> int:
    """Return the number of limbs of an action's parameters."""
    return sum(limbs(parameter.width) for parameter in action.parameters)


def most_limbs(actions: Iterable[Action]) -> int:
    """Return the largest number of limbs that the parameters of one of the actions take."""
    return max((parameter_limbs(action) for action in actions), default=0)


def entry_limbs(table: Table) -> int:
    """Return the number of limbs of an entry's action parameters. An entry of an indirect table has one limb instead,
    the number of a member or group."""
    return 1 if table.profile is not None else most_limbs(table.actions)


def shape(table: Table) -> str:
    """Return the C initialiser of the table's shape."""
    kind = "TABLE_ORDERED" if table.ordered else "TABLE_EXACT"
    size = max(1, table.size, len(table.entries or ()))
    extra = [*(["1"] if table.idle_timeouts else []), *(["sizeof(struct meter) / 8"] if table.meter else [])]
    more = f", {' + '.join(extra)}" if extra else ""
    return f"{{{kind}, {key_limbs(table)}, {stored_limbs(table)}, {entry_limbs(table)}, {size}{more}}}"


def words(value: int, width: int) -> list[int]:
    if width <= 64:
        return [value & mask_of(64)]
    return [value >> 64 * i & mask_of(64) for i in range(limbs(width))]


def stored_match(table: Table, pairs: Sequence[Pair]) -> list[int]:
    """Return an entry's match as limbs, without its order; pairs are (value, mask), or (low, high) for range fields."""
    values = _by_field(table, [first for first, _ in pairs])
    return values + _by_field(table, [second for _, second in pairs]) if table.ordered else values


def numbers(items: Sequence[KeyField] | Sequence[Parameter], stored: Sequence[int]) -> list[int]:
    """Return the values of fields or parameters from their limbs."""
    result, at = [], 0
    for item in items:
        count = limbs(item.width)
        result.append(sum(word << 64 * i for i, word in enumerate(stored[at : at + count])))
        at += count
    return result


def _by_field(table: Table, values: Sequence[int]) -> list[int]:
    return [word for field, value in zip(table.key, values, strict=True) for word in words(value, field.width)]


def masks_of(table: Table, pairs: Sequence[Pair]) -> tuple[int, ...]:
    """Return the masks, by field, that a key gets before an ordered table hashes it; 0 for range fields."""
    return tuple(0 if field.kind == "range" else mask for field, (_, mask) in zip(table.key, pairs, strict=True))


def mask_words(table: Table, pairs: Sequence[Pair]) -> list[int]:
    """Return `masks_of` as limbs."""
    return _by_field(table, masks_of(table, pairs))


def matchers(program: Program) -> list[str]:
    """Return, for each ordered table, the C function that compares a key with an entry."""
    found = {table.name: table for table in program.tables}
    return [
        line
        for name, number in numbered(program).items()
        if found[name].ordered
        for line in _matcher(found[name], number)
    ]


def _matcher(table: Table, number: int) -> list[str]:
    conditions, at = [], 0
    for field in table.key:
        conditions.append(_field_matches(field, at, key_limbs(table)))
        at += limbs(field.width)
    return [
        f"static inline int matches_{number}(const uint64_t *key, const uint64_t *stored) {{  // {table.name}",
        f"    return {' && '.join(conditions)};",
        "}",
    ]


def _field_matches(field: KeyField, at: int, second: int) -> str:
    """Return the condition that a field matches; its mask is `second` limbs after its value."""
    count = limbs(field.width)
    if field.kind == "range":
        low, high, key = f"stored + {at}", f"stored + {at + second}", f"key + {at}"
        return f"wide_compare({low}, {key}, {count}, 0) <= 0 && wide_compare({key}, {high}, {count}, 0) <= 0"
    equal = [f"((key[{i}] ^ stored[{i}]) & stored[{i + second}])" for i in range(at, at + count)]
    return f"({' | '.join(equal)}) == 0"


def emit_lookup(layout: Layout, block: Block, table: Table, number: int) -> None:
    """Write statements that set `entry` (the default entry on a miss) and `hit`."""
    low = Translator(layout, block, place=table.place, kept=False)
    block.add(f"const struct table *table = &D->in->tables[{number}];")
    if not table.key:
        block.add("struct entry *entry = NULL;")
    else:
        _emit_key(low, table)
        find = f"find_ordered(table, key, {key_limbs(table)}, matches_{number})" if table.ordered else ""
        block.add(f"struct entry *entry = {find or f'find_exact(table, key, {key_limbs(table)})'};")
    block.add("const int hit = entry != NULL;", "if (!hit) entry = table->miss;")
    if table.counted:
        block.add("entry->count.packets++;", "entry->count.bytes += D->length;")
    if table.idle_timeouts or table.meter:
        with block.braces("if (hit)"):
            _emit_hit(low, table)


def _emit_hit(low: Lowering, table: Table) -> None:
    """Write the effects of a hit on the entry's time stamp and meter."""
    at = stored_limbs(table) + entry_limbs(table)
    low.block.add("const uint64_t now = services(D->core)->now_us(D->core);")
    if table.idle_timeouts:
        low.block.add(f"entry->limbs[{at}] = now;")
        at += 1
    if table.meter is not None:
        units = "1" if table.meter.unit == "packets" else "D->length"
        low.set(table.meter.target, f"(uint64_t)meter_run((struct meter *)(entry->limbs + {at}), now, {units})")


def _emit_key(low: Lowering, table: Table) -> None:
    low.block.add(f"uint64_t key[{key_limbs(table)}];")
    at = 0
    for field in table.key:
        if field.width <= 64:
            mask = "" if field.mask is None else f" & {literal(field.mask)}"
            low.block.add(f"key[{at}] = {low.masked(field.target, field.width)}{mask};")
        else:
            own = low.ranges.field(field.target)
            store = low.store_cut if own is not None and own.signed else low.store
            store(f"(key + {at})", field.target, field.width)
            for i, word in enumerate(words(-1 if field.mask is None else field.mask, field.width)):
                if word != mask_of(64):
                    low.block.add(f"key[{at + i}] &= {literal(word)};")
        at += limbs(field.width)
