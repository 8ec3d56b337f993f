"""Action profiles: members and groups by id, and the choice of a packet's member."""

from kofn_switch.compiler.ir.program import ActionProfile
from kofn_switch.errors import EntryExists, EntryNotFound
from kofn_switch.state.entries import (
    ActionSet,
    GroupMember,
    GroupRef,
    Member,
    MemberGroup,
    MemberRef,
    Via,
    WeightedAction,
)
from kofn_switch.state.places import Places
from tests.switch.reference.expressions import Scope
from tests.switch.reference.hashes import calculate
from tests.switch.reference.packet import Packet

Chosen = Member | WeightedAction


class ReferenceProfile:
    """Members and groups. A new member gets the lowest free place; a group's members are ordered by their places."""

    def __init__(self, profile: ActionProfile) -> None:
        self._profile = profile
        self._places = Places(f"action profile {profile.name}", profile.size)
        self._members: dict[int, tuple[int, Member]] = {}  # place and member
        self._groups: dict[int, MemberGroup] = {}

    def insert_member(self, member: Member) -> None:
        if member.id in self._members:
            raise EntryExists(f"there is a member {member.id} already")
        self._members[member.id] = self._places.take(), member

    def insert_group(self, group: MemberGroup) -> None:
        if group.id in self._groups:
            raise EntryExists(f"there is a group {group.id} already")
        for one in group.members:
            self._member(one)
        self._groups[group.id] = group

    def _member(self, one: GroupMember | MemberRef) -> tuple[int, Member]:
        if one.member not in self._members:
            raise EntryNotFound(f"there is no member {one.member}")
        return self._members[one.member]

    def choose(self, via: Via, scope: Scope, packet: Packet) -> Chosen | None:
        """Return the member or action that an entry's reference leads to; None: an empty group."""
        if isinstance(via, MemberRef):
            return self._member(via)[1]
        choices = self._choices(via)
        if not choices or self._profile.selector is None:
            return None
        return choices[calculate(self._profile.selector, scope, packet) % len(choices)]

    def _choices(self, via: GroupRef | ActionSet) -> list[Chosen]:
        """Return each member as often as its weight."""
        if isinstance(via, ActionSet):
            return [action for action in via.actions for _ in range(action.weight)]
        weighted = [(*self._member(one), one.weight) for one in self._groups[via.group].members]
        return [member for _, member, weight in sorted(weighted, key=lambda item: item[0]) for _ in range(weight)]
