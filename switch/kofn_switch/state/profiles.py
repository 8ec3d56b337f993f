"""One action profile as the control plane knows it: members, groups, their uses, and their places in native tables.

A group's members are ordered by their places, each as often as its weight.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from kofn_switch.compiler.codegen.indirect import profile_actions
from kofn_switch.compiler.codegen.matching import most_limbs
from kofn_switch.compiler.ir.program import ActionProfile, Program
from kofn_switch.errors import EntryExists, EntryNotFound, InvalidEntry, StillUsed, TableFull
from kofn_switch.state.actions import find_action, parameter_words
from kofn_switch.state.entries import ActionSet, GroupRef, Member, MemberGroup, MemberRef, Via, WeightedAction
from kofn_switch.state.places import Places

GROUPS_MAX = 1 << 20
CHOICES_MAX = 1 << 16  # largest sum of a group's weights
T = TypeVar("T")
MEMBER, GROUP = range(2)  # enum indirect of runtime/program.h


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """An entry's reference to a member or group; `kind` and `number` are those that the native table stores."""

    via: Via
    kind: int
    number: int
    own: tuple[int, ...] = ()  # the places of the entry's own members


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """A member's place, and its new content: the action's place in the profile's list, and its parameters."""

    number: int
    action: int
    words: list[int]


class ProfileState:
    """Members and groups by id. A method that raises changes nothing."""

    def __init__(self, program: Program, profile: ActionProfile) -> None:
        self.profile = profile
        actions = profile_actions(program, profile.name)
        self._actions = {action.name: action for action in actions}
        self._numbers = {action.name: number for number, action in enumerate(actions)}
        self._limbs = most_limbs(actions)
        self.members: dict[int, tuple[Member, int]] = {}
        self.groups: dict[int, tuple[MemberGroup, int]] = {}
        self._member_places = Places(f"action profile {profile.name}", 2 * profile.size)  # old and new sets overlap
        self._held = 0  # members, including those of entries' action sets
        self._group_places = Places(f"action profile {profile.name}", GROUPS_MAX)
        self._used: Counter[tuple[int, int]] = Counter()  # by (kind, id): entries and groups that refer to it
        self._sets: Counter[int] = Counter()  # by the group's place: the weights of entries' own members
        self._grouped = self._weighed = 0  # members of all groups and sets together, and the sum of their weights

    # Members

    def add_member(self, member: Member) -> Written:
        self._check_no_sets(f"member {member.id}")
        self._check_id("member", member.id)
        words = self._words(member.action, member.parameters)
        if member.id in self.members:
            raise EntryExists(f"action profile {self.profile.name} has a member {member.id} already")
        self._check_room(1)
        number = self._member_places.take()
        self._held += 1
        self.members[member.id] = member, number
        return Written(number=number, action=self._numbers[member.action], words=words)

    def change_member(self, member: Member) -> Written:
        words = self._words(member.action, member.parameters)
        _, number = self.member(member.id)
        self.members[member.id] = member, number
        return Written(number=number, action=self._numbers[member.action], words=words)

    def remove_member(self, member_id: int) -> None:
        _, number = self.member(member_id)
        self._check_unused(MEMBER, member_id)
        del self.members[member_id]
        self._member_places.free(number)
        self._held -= 1

    def member(self, member_id: int) -> tuple[Member, int]:
        """Return a member and its place. Raise EntryNotFound."""
        return self._found("member", self.members, member_id)

    # Groups

    def add_group(self, group: MemberGroup) -> tuple[int, list[int]]:
        """Return the group's place and its members' places, each as often as its weight.

        Raises InvalidEntry, EntryExists, EntryNotFound.
        """
        self._check_selector(f"group {group.id}")
        self._check_no_sets(f"group {group.id}")
        self._check_id("group", group.id)
        if group.id in self.groups:
            raise EntryExists(f"action profile {self.profile.name} has a group {group.id} already")
        choices = self._choices(group)
        number = self._group_places.take()
        self.groups[group.id] = group, number
        self._use_members(group, 1)
        return number, choices

    def change_group(self, group: MemberGroup) -> tuple[int, list[int]]:
        """Change an existing group, and return the same as `add_group`. Raise InvalidEntry, EntryNotFound."""
        before, number = self.group(group.id)
        if before.max_size != group.max_size:
            raise InvalidEntry(f"max_size of group {group.id} must stay {before.max_size}, got {group.max_size}")
        choices = self._choices(group)
        self._use_members(before, -1)
        self._use_members(group, 1)
        self.groups[group.id] = group, number
        return number, choices

    def remove_group(self, group_id: int) -> int:
        """Remove a group and return its place. Raise EntryNotFound, StillUsed."""
        group, number = self.group(group_id)
        self._check_unused(GROUP, group_id)
        self._use_members(group, -1)
        del self.groups[group_id]
        self._group_places.free(number)
        return number

    def group(self, group_id: int) -> tuple[MemberGroup, int]:
        """Return a group and its place. Raise EntryNotFound."""
        return self._found("group", self.groups, group_id)

    def _choices(self, group: MemberGroup) -> list[int]:
        ids = [member.member for member in group.members]
        if len(set(ids)) < len(ids):
            raise InvalidEntry(f"group {group.id} of {self.profile.name} has a member twice; weights say how often")
        places = sorted((self.member(member.member)[1], member.weight) for member in group.members)
        self._check_weights([weight for _, weight in places])
        return [number for number, weight in places for _ in range(weight)]

    def _use_members(self, group: MemberGroup, times: int) -> None:
        for member in group.members:
            self._use(MEMBER, member.member, times)
        self._count(times * len(group.members), times * sum(member.weight for member in group.members))

    def _count(self, members: int, weights: int) -> None:
        self._grouped += members
        self._weighed += weights

    def _use(self, kind: int, number: int, times: int) -> None:
        self._used[kind, number] += times
        if self._used[kind, number] == 0:
            del self._used[kind, number]

    # Entries

    def hold(self, via: Via, replaced: Held | None = None) -> tuple[Held, list[Written], list[int]]:
        """Return an entry's reference; for an action set also the members to write and the choices of its group.

        `replaced` is the entry's earlier reference, which the caller releases afterwards.

        Raises InvalidEntry, EntryNotFound, TableFull.
        """
        match via:
            case MemberRef(member=member_id):
                held = Held(via=via, kind=MEMBER, number=self.member(member_id)[1])
                self._use(MEMBER, member_id, 1)
            case GroupRef(group=group_id):
                self._check_selector(f"group {group_id}")
                held = Held(via=via, kind=GROUP, number=self.group(group_id)[1])
                self._use(GROUP, group_id, 1)
            case ActionSet(actions=actions):
                return self._hold_set(via, actions, 0 if replaced is None else len(replaced.own))
        return held, [], []

    def _hold_set(
        self, via: ActionSet, actions: tuple[WeightedAction, ...], replaced: int
    ) -> tuple[Held, list[Written], list[int]]:
        self._check_selector("an action set")
        if self.members or self.groups:
            raise InvalidEntry(f"action profile {self.profile.name} has members of its own: no action sets beside them")
        rows = [(self._numbers.get(row.action, 0), self._words(row.action, row.parameters)) for row in actions]
        weights = [row.weight for row in actions]
        self._check_weights(weights)
        self._check_room(len(rows) - replaced)
        numbers = sorted(self._member_places.take() for _ in rows)
        self._held += len(rows)
        group = self._group_places.take()
        self._sets[group] = sum(weights)
        self._count(len(rows), sum(weights))
        written = [
            Written(number=number, action=action, words=words)
            for number, (action, words) in zip(numbers, rows, strict=True)
        ]
        held = Held(via=via, kind=GROUP, number=group, own=tuple(numbers))
        return held, written, [number for number, weight in zip(numbers, weights, strict=True) for _ in range(weight)]

    def release(self, held: Held) -> None:
        """Release an entry's reference."""
        match held.via:
            case MemberRef(member=member_id):
                self._use(MEMBER, member_id, -1)
            case GroupRef(group=group_id):
                self._use(GROUP, group_id, -1)
            case ActionSet():
                self._held -= len(held.own)
                for number in held.own:
                    self._member_places.free(number)
                self._group_places.free(held.number)
                self._count(-len(held.own), -self._sets.pop(held.number))

    # Sizes

    def use(self) -> tuple[int, int]:
        """Return the number of members, and the sum of weights, of all groups together."""
        return self._grouped, self._weighed

    # Checks

    def _words(self, action: str, parameters: tuple[int, ...]) -> list[int]:
        found = find_action(f"action profile {self.profile.name}", self._actions, action, parameters)
        return parameter_words(found, parameters, self._limbs)

    def _check_id(self, kind: str, number: int) -> None:
        if number < 1:
            raise InvalidEntry(f"{kind} ids of action profile {self.profile.name} start at 1; {number} is none")

    def _check_selector(self, what: str) -> None:
        if self.profile.selector is None:
            raise InvalidEntry(
                f"action profile {self.profile.name} has no selector: {what} is not possible, members are"
            )

    def _check_no_sets(self, what: str) -> None:
        if self._sets:
            raise InvalidEntry(f"entries of action profile {self.profile.name} have action sets: no {what} beside them")

    def _check_room(self, more: int) -> None:
        if self._held + more > self.profile.size:
            raise TableFull(f"action profile {self.profile.name} is full: {self.profile.size} members")

    def _check_weights(self, weights: list[int]) -> None:
        if weights and min(weights) < 1:
            raise InvalidEntry(f"a weight must be 1 or more, got {min(weights)}")
        if sum(weights) > CHOICES_MAX:
            raise TableFull(f"the weights of a group of {self.profile.name} are {CHOICES_MAX} together at most")

    def _check_unused(self, kind: int, number: int) -> None:
        if self._used[kind, number] > 0:
            what = ("member", "group")[kind]
            users = "groups or entries" if kind == MEMBER else "entries"
            raise StillUsed(f"{what} {number} of action profile {self.profile.name} is used by {users}")

    def _found(self, kind: str, items: Mapping[int, T], number: int) -> T:
        if number not in items:
            raise EntryNotFound(f"action profile {self.profile.name} has no {kind} {number}; it has {_some(items)}")
        return items[number]


def _some(numbers: Iterable[int], most: int = 12) -> str:
    listed = sorted(numbers)
    more = ", ..." if len(listed) > most else ""
    return ", ".join(map(str, listed[:most])) + more if listed else "none"
