"""Objects of a p4info by id; the refusal of an unknown id lists the known ones."""

from collections.abc import Callable, Iterable, Iterator
from typing import Generic, Protocol, TypeVar

from kofn.switch.p4runtime.refusal import Refused, choices, invalid, not_found


class Named(Protocol):
    """Anything with an id and a name."""

    @property
    def id(self) -> int:
        """The id by which P4Runtime messages refer to it."""

    @property
    def name(self) -> str:
        """The name by which people and the engine refer to it."""


T = TypeVar("T", bound=Named)


class Index(Generic[T]):
    """The objects of one kind by id; a miss names the kind, the id and the choices."""

    def __init__(self, kind: str, items: Iterable[T], *, foreign: Callable[[str], Refused] = invalid) -> None:
        """`kind` names such an object in messages: `table`, `match field of table t`; `foreign` refuses a wrong id."""
        self.kind = kind
        self._foreign = foreign
        self._by_id: dict[int, T] = {}
        for item in items:
            if item.id in self._by_id:
                raise invalid(f"{kind}s {self._by_id[item.id].name} and {item.name} have the same id 0x{item.id:x}")
            self._by_id[item.id] = item

    def __iter__(self) -> Iterator[T]:
        return iter(self._by_id.values())

    def __len__(self) -> int:
        return len(self._by_id)

    def __contains__(self, object_id: int) -> bool:
        """Return whether that id is one of these."""
        return object_id in self._by_id

    def get(self, object_id: int) -> T:
        """Return the object with that id; INVALID_ARGUMENT for the unset id 0, `foreign` for an unknown id."""
        if object_id in self._by_id:
            return self._by_id[object_id]
        known = choices(f"{item.name} (0x{item.id:x})" for item in self)
        if object_id == 0:
            raise invalid(f"the id of {'an' if self.kind[0] in 'aeiou' else 'a'} {self.kind} is not set: {known}")
        raise self._foreign(f"no {self.kind} has id 0x{object_id:x}: {known}")

    def named(self, name: str) -> T:
        """Return the object with that name; NOT_FOUND otherwise."""
        for item in self:
            if item.name == name:
                return item
        raise not_found(f"no {self.kind} is named {name}: {choices(item.name for item in self)}")
