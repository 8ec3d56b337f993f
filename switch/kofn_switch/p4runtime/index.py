"""Finds the objects of a p4info by id or name, and refuses unknown ids and names."""

from collections.abc import Callable, Iterable, Iterator
from typing import Generic, Protocol, TypeVar

from kofn_switch.p4runtime.refusal import Refused, choices, invalid, not_found


class Named(Protocol):
    """Anything with an id and a name."""

    @property
    def id(self) -> int:
        """The id that P4Runtime messages use."""

    @property
    def name(self) -> str:
        """The name that people and the engine use."""


T = TypeVar("T", bound=Named)


class Index(Generic[T]):
    """The objects of one kind, by id. The refusal of an unknown id names the kind, the id and the known objects."""

    def __init__(self, kind: str, items: Iterable[T], *, foreign: Callable[[str], Refused] = invalid) -> None:
        """Index the items. `kind` names one item in messages: `table`, `match field of table t`. `foreign` makes the
        refusal of an unknown id; by default it is INVALID_ARGUMENT."""
        self.kind = kind
        self._foreign = foreign
        self._by_id: dict[int, T] = {}
        for item in items:
            if item.id in self._by_id:
                one, other = self._by_id[item.id].name, item.name
                raise invalid(f"each {kind} must have its own id, got 0x{item.id:x} for both {one} and {other}")
            self._by_id[item.id] = item

    def __iter__(self) -> Iterator[T]:
        return iter(self._by_id.values())

    def __len__(self) -> int:
        return len(self._by_id)

    def __contains__(self, object_id: int) -> bool:
        """Return whether an object has that id."""
        return object_id in self._by_id

    def get(self, object_id: int) -> T:
        """Return the object with that id. Refuse the unset id 0 as INVALID_ARGUMENT, an unknown id by `foreign`."""
        if object_id in self._by_id:
            return self._by_id[object_id]
        known = choices(f"{item.name} (0x{item.id:x})" for item in self)
        if object_id == 0:
            raise invalid(f"the id of {'an' if self.kind[0] in 'aeiou' else 'a'} {self.kind} is not set: {known}")
        raise self._foreign(f"no {self.kind} has id 0x{object_id:x}: {known}")

    def named(self, name: str) -> T:
        """Return the object with that name; refuse an unknown name with NOT_FOUND."""
        for item in self:
            if item.name == name:
                return item
        raise not_found(f"no {self.kind} is named {name}: {choices(item.name for item in self)}")
