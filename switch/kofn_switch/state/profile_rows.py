"""The action profiles of a loaded program: members and groups, carried out in the native part.

Only one thread at a time may call the methods, as in rows.py.
"""

import ctypes

from kofn_switch.compiler.ir.program import Program
from kofn_switch.errors import SwitchError
from kofn_switch.native import limbs_array, runtime
from kofn_switch.state.entries import ActionSet, Member, MemberGroup, Via
from kofn_switch.state.named import named
from kofn_switch.state.profiles import Held, ProfileState, Written


class ProfileRows:
    """Members and groups of one instance of a program."""

    def __init__(self, program: Program, core: int, instance: int) -> None:
        self._native, self._core, self._instance = runtime(), core, instance
        self._profiles = {profile.name: ProfileState(program, profile) for profile in program.profiles.values()}
        self._numbers = {name: number for number, name in enumerate(program.profiles)}

    def profile(self, name: str) -> ProfileState:
        """Return the action profile of that name.  Raises UnknownObject."""
        return named(self._profiles, "action profile", name)

    def insert_member(self, member: Member) -> None:
        self._write_member(member.profile, self.profile(member.profile).add_member(member))

    def modify_member(self, member: Member) -> None:
        self._write_member(member.profile, self.profile(member.profile).change_member(member))

    def insert_group(self, group: MemberGroup) -> None:
        self._write_group(group.profile, *self.profile(group.profile).add_group(group))

    def modify_group(self, group: MemberGroup) -> None:
        self._write_group(group.profile, *self.profile(group.profile).change_group(group))

    def delete_group(self, profile: str, group_id: int) -> None:
        self._write_group(profile, self.profile(profile).remove_group(group_id), [])

    def hold(self, profile: str, via: Via, replaced: Held | None) -> Held:
        """Refer to a member, a group or an entry's own action set, instead of `replaced`."""
        held, members, choices = self._profiles[profile].hold(via, replaced)
        if isinstance(via, ActionSet):
            for member in members:
                self._write_member(profile, member)
            self._write_group(profile, held.number, choices)
        return held

    def release(self, profile: str, held: Held) -> None:
        """Release an entry's reference. Empty the group of an action set, because no other entry refers to it."""
        self._profiles[profile].release(held)
        if isinstance(held.via, ActionSet):
            self._write_group(profile, held.number, [])

    def _write_member(self, profile: str, member: Written) -> None:
        number, words = self._numbers[profile], limbs_array(member.words)
        _check_memory(
            self._native.profile_set_member(self._core, self._instance, number, member.number, member.action, words)
        )

    def _write_group(self, profile: str, number: int, choices: list[int]) -> None:
        members = (ctypes.c_uint32 * max(1, len(choices)))(*choices)
        place = self._numbers[profile]
        _check_memory(self._native.profile_set_group(self._core, self._instance, place, number, members, len(choices)))


def _check_memory(result: int) -> None:
    if result < 0:
        raise SwitchError("not enough memory for the action profile")
