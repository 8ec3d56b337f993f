"""Tables in C: keys, look-ups, and how an entry's match is laid out in limbs.

Exact tables store the key; all others store two limbs arrays a field (value and mask, or low and high) and are searched
in order.  `shapes` numbers the tables that the control plane can see; a table that can only miss is called directly.
"""

from collections.abc import Sequence

from switch.compiler.block import Block
from switch.compiler.layout import Layout, limbs, literal, mask_of
from switch.compiler.lowering import Lowering
from switch.compiler.operators import Translator
from switch.compiler.program import Action, KeyField, Program, Table
from switch.errors import ProgramError


def is_call(table: Table) -> bool:
    """Whether a table is only p4c's way to write a call of its default action."""
    return not table.key and table.default_const and not table.counted


def numbered(program: Program) -> dict[str, int]:
    """The tables that exist at run time, with their numbers."""
    return {table.name: number for number, table in enumerate(t for t in program.tables if not is_call(t))}


def check_table(table: Table) -> None:
    """Raises ProgramError for what is not executed."""
    for what, used in (
        ("the action profile", table.profile),
        ("the direct meter", table.meter),
        ("the idle timeout", table.idle_timeouts),
        ("a missing default action", table.default_action is None),
    ):
        if used:
            raise ProgramError(f"{table.place}: {what} of table {table.name} is not executed")


def key_limbs(table: Table) -> int:
    """Limbs of a look-up key."""
    return sum(limbs(field.width) for field in table.key)


def stored_limbs(table: Table) -> int:
    """Limbs of an entry's match."""
    return key_limbs(table) * (2 if table.ordered else 1)


def parameter_limbs(action: Action) -> int:
    """Limbs of an action's parameters."""
    return sum(limbs(parameter.width) for parameter in action.parameters)


def shape(table: Table) -> str:
    """The C initialiser of the table's shape."""
    kind = "TABLE_ORDERED" if table.ordered else "TABLE_EXACT"
    most = max((parameter_limbs(action) for action in table.actions), default=0)
    size = max(1, table.size, len(table.entries or ()))
    return f"{{{kind}, {key_limbs(table)}, {stored_limbs(table)}, {most}, {size}}}"


def words(value: int, width: int) -> list[int]:
    """A value as limbs."""
    return [value >> 64 * i & mask_of(64) for i in range(limbs(width))]


def stored_match(table: Table, pairs: Sequence[tuple[int, int]]) -> list[int]:
    """An entry's match as limbs; a pair is (value, mask), or (low, high) for a range field."""
    if not table.ordered:
        return [word for field, (value, _) in zip(table.key, pairs, strict=True) for word in words(value, field.width)]
    return [
        word
        for field, (first, second) in zip(table.key, pairs, strict=True)
        for word in words(first, field.width) + words(second, field.width)
    ]


def emit_lookup(layout: Layout, block: Block, table: Table, number: int) -> None:
    """Statements that leave `entry` (the default entry on a miss) and `hit`."""
    low = Translator(layout, block, place=table.place)
    block.add(f"const struct table *table = &D->in->tables[{number}];")
    if not table.key:
        block.add("struct entry *entry = NULL;")
    else:
        _emit_key(low, table)
        _emit_search(block, table)
    block.add("const int hit = entry != NULL;", "if (!hit) entry = table->miss;")
    if table.counted:
        block.add("entry->count.packets++;", "entry->count.bytes += D->length;")


def _emit_key(low: Lowering, table: Table) -> None:
    low.block.add(f"uint64_t key[{key_limbs(table)}];")
    at = 0
    for field in table.key:
        if field.width <= 64:
            mask = "" if field.mask is None else f" & {literal(field.mask)}"
            low.block.add(f"key[{at}] = {low.masked(field.target, field.width)}{mask};")
        else:
            low.store(f"(key + {at})", field.target, field.width)
            for i, word in enumerate(words(-1 if field.mask is None else field.mask, field.width)):
                if word != mask_of(64):
                    low.block.add(f"key[{at + i}] &= {literal(word)};")
        at += limbs(field.width)


def _emit_search(block: Block, table: Table) -> None:
    if not table.ordered:
        block.add(f"struct entry *entry = find_exact(table, key, {key_limbs(table)});")
        return
    block.add("struct entry *entry = NULL;")
    with block.braces("for (uint32_t rank = 0; rank < table->used; rank++)"):
        block.add("struct entry *one = entry_at(table, table->index[rank]);")
        key = stored = 0
        for field in table.key:
            block.add(f"if (!({_field_matches(field, key, stored)})) continue;")
            key += limbs(field.width)
            stored += 2 * limbs(field.width)
        block.add("entry = one;", "break;")


def _field_matches(field: KeyField, key: int, stored: int) -> str:
    count = limbs(field.width)
    if field.kind == "range":
        low, high = f"one->limbs + {stored}", f"one->limbs + {stored + count}"
        return (
            f"wide_compare({low}, key + {key}, {count}, 0) <= 0 && wide_compare(key + {key}, {high}, {count}, 0) <= 0"
        )
    equal = [f"((key[{key + i}] ^ one->limbs[{stored + i}]) & one->limbs[{stored + count + i}])" for i in range(count)]
    return f"({' | '.join(equal)}) == 0"
