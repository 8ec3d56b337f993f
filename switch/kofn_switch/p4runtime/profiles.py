"""ActionProfileMember and ActionProfileGroup: writes and reads by P4Runtime's rules, carried out by the engine."""

from collections.abc import Iterator

from finsy.proto import p4r

from kofn_switch.engine.engine import Engine
from kofn_switch.p4runtime.actions import (
    check_total,
    decode_action,
    decode_weight,
    encode_action,
    encode_weight,
    group_size,
    refuse_watch,
)
from kofn_switch.p4runtime.cells import UpdateType
from kofn_switch.p4runtime.p4info import ActionProfile, P4Info
from kofn_switch.p4runtime.refusal import exhausted, invalid
from kofn_switch.state.entries import GroupMember, Member, MemberGroup


class Profiles:
    """The program's action profiles as P4Runtime has them. The engine holds the members."""

    def __init__(self, engine: Engine, p4info: P4Info) -> None:
        """Take the `p4info` of the program that `engine` runs."""
        self._engine = engine
        self._p4info = p4info

    def write_member(self, kind: UpdateType, message: p4r.ActionProfileMember) -> None:
        """Carry out INSERT, MODIFY or DELETE of a member. Raise SwitchError."""
        profile = self._p4info.profiles.get(message.action_profile_id)
        if message.member_id == 0:
            raise invalid(f"the id of a member of action profile {profile.name} is not set")
        if kind == p4r.Update.DELETE:
            self._engine.delete_member(profile.name, message.member_id)
            return
        if not message.HasField("action"):
            raise invalid(f"member {message.member_id} of action profile {profile.name} needs an action")
        name, parameters = decode_action(f"action profile {profile.name}", profile.actions, message.action)
        member = Member(profile=profile.name, id=message.member_id, action=name, parameters=parameters)
        write = self._engine.insert_member if kind == p4r.Update.INSERT else self._engine.modify_member
        write(member)

    def read_members(self, query: p4r.ActionProfileMember) -> Iterator[p4r.ActionProfileMember]:
        """Yield one member, all members of a profile (member id 0), or all members of all profiles (both ids 0)."""
        for profile in self._selected(query.action_profile_id):
            for member in self._engine.members(profile.name):
                if query.member_id in (0, member.id):
                    action = encode_action(self._p4info, member.action, member.parameters)
                    yield p4r.ActionProfileMember(action_profile_id=profile.id, member_id=member.id, action=action)

    def write_group(self, kind: UpdateType, message: p4r.ActionProfileGroup) -> None:
        """Carry out INSERT, MODIFY or DELETE of a group. Raise SwitchError."""
        profile = self._p4info.profiles.get(message.action_profile_id)
        if message.group_id == 0:
            raise invalid(f"the id of a group of action profile {profile.name} is not set")
        if not profile.selector:
            raise invalid(f"action profile {profile.name} has no selector, so no groups")
        if kind == p4r.Update.DELETE:
            self._engine.delete_member_group(profile.name, message.group_id)
            return
        group = self._group(profile, message)
        self._check_size(profile, group)
        write = self._engine.insert_member_group if kind == p4r.Update.INSERT else self._engine.modify_member_group
        write(group)

    def read_groups(self, query: p4r.ActionProfileGroup) -> Iterator[p4r.ActionProfileGroup]:
        """Yield one group, all groups of a selector (group id 0), or all groups of all selectors (both ids 0)."""
        for profile in self._selected(query.action_profile_id):
            for group in self._engine.member_groups(profile.name):
                if query.group_id in (0, group.id):
                    yield self._group_message(profile, group)

    def _selected(self, profile_id: int) -> list[ActionProfile]:
        return [self._p4info.profiles.get(profile_id)] if profile_id else list(self._p4info.profiles)

    def _group(self, profile: ActionProfile, message: p4r.ActionProfileGroup) -> MemberGroup:
        members = []
        for member in message.members:
            refuse_watch(profile, member)
            members.append(GroupMember(member=member.member_id, weight=decode_weight(profile, member.weight)))
        return MemberGroup(profile=profile.name, id=message.group_id, members=tuple(members), max_size=message.max_size)

    def _check_size(self, profile: ActionProfile, group: MemberGroup) -> None:
        what = f"group {group.id} of action profile {profile.name}"
        if group.max_size < 0:
            raise invalid(f"max_size of {what} must be 0 (unset) or more, got {group.max_size}")
        if 0 < profile.max_group_size < group.max_size:
            raise invalid(f"max_size of {what} must be at most {profile.max_group_size}, got {group.max_size}")
        size = group_size(profile, [member.weight for member in group.members])
        most = group.max_size or profile.max_group_size
        if 0 < most < size:
            raise exhausted(f"the size of {what} must be at most {most}, got {size}")
        before = [old for old in self._engine.member_groups(profile.name) if old.id == group.id]
        replaced = sum(group_size(profile, [member.weight for member in old.members]) for old in before)
        check_total(self._engine, profile, size - replaced)

    def _group_message(self, profile: ActionProfile, group: MemberGroup) -> p4r.ActionProfileGroup:
        message = p4r.ActionProfileGroup(action_profile_id=profile.id, group_id=group.id, max_size=group.max_size)
        for member in group.members:
            message.members.add(member_id=member.member, weight=encode_weight(profile, member.weight))
        return message
