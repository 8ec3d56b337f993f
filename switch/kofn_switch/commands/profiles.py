"""Commands about action profiles: members, groups, and entries of indirect tables.  Handles begin at 0, ids at 1."""

from collections.abc import Callable, Iterator
from dataclasses import replace

from kofn_switch.commands.session import Command, CommandError, Commands, Session, check_count, find, number
from kofn_switch.commands.values import MANY, RULE, STARS, key, normal, parameters, priority_of, short
from kofn_switch.compiler.ir.program import Action, ActionProfile
from kofn_switch.state.entries import Entry, GroupMember, GroupRef, Member, MemberGroup, MemberRef, Via


def act_prof_create_member(session: Session, words: list[str]) -> Iterator[str]:
    """Make a member: act_prof_create_member <action profile name> <action_name> [action parameters]"""
    check_count(words, 2, MANY)
    profile = _profile(session, words[0])
    action = _action(session, profile, words[1])
    taken = {member.id for member in session.engine.members(profile.name)}
    member = _free(taken)
    given = parameters(action, words[2:])
    session.engine.insert_member(Member(profile=profile.name, id=member, action=action.name, parameters=given))
    yield f"Member has been created with handle {member - 1}"


def act_prof_modify_member(session: Session, words: list[str]) -> Iterator[str]:
    """Give a member another action:
    act_prof_modify_member <action profile name> <action_name> <member_handle> [action parameters]"""
    check_count(words, 3, MANY)
    profile = _profile(session, words[0])
    action = _action(session, profile, words[1])
    member = number(words[2], "member handle") + 1
    given = parameters(action, words[3:])
    session.engine.modify_member(Member(profile=profile.name, id=member, action=action.name, parameters=given))
    yield from ()


def act_prof_delete_member(session: Session, words: list[str]) -> Iterator[str]:
    """Delete a member: act_prof_delete_member <action profile name> <member handle>"""
    check_count(words, 2)
    session.engine.delete_member(_profile(session, words[0]).name, number(words[1], "member handle") + 1)
    yield from ()


def act_prof_create_group(session: Session, words: list[str]) -> Iterator[str]:
    """Make an empty group: act_prof_create_group <action profile name>"""
    check_count(words, 1)
    profile = _profile(session, words[0])
    group = _free({group.id for group in session.engine.member_groups(profile.name)})
    session.engine.insert_member_group(MemberGroup(profile=profile.name, id=group, members=()))
    yield f"Group has been created with handle {group - 1}"


def act_prof_delete_group(session: Session, words: list[str]) -> Iterator[str]:
    """Delete a group: act_prof_delete_group <action profile name> <group handle>"""
    check_count(words, 2)
    session.engine.delete_member_group(_profile(session, words[0]).name, number(words[1], "group handle") + 1)
    yield from ()


def act_prof_add_member_to_group(session: Session, words: list[str]) -> Iterator[str]:
    """Put a member into a group: act_prof_add_member_to_group <action profile name> <member handle> <group handle>"""
    check_count(words, 3)
    group = _group(session, _profile(session, words[0]), words[2])
    member = GroupMember(member=number(words[1], "member handle") + 1)
    session.engine.modify_member_group(replace(group, members=(*group.members, member)))
    yield from ()


def act_prof_remove_member_from_group(session: Session, words: list[str]) -> Iterator[str]:
    """Take a member out of a group:
    act_prof_remove_member_from_group <action profile name> <member handle> <group handle>"""
    check_count(words, 3)
    group = _group(session, _profile(session, words[0]), words[2])
    gone = number(words[1], "member handle") + 1
    left = tuple(member for member in group.members if member.member != gone)
    if left == group.members:
        raise CommandError("Invalid table operation (MBR_NOT_IN_GRP)")
    session.engine.modify_member_group(replace(group, members=left))
    yield from ()


def act_prof_dump(session: Session, words: list[str]) -> Iterator[str]:
    """Show members and groups: act_prof_dump <action profile name>"""
    check_count(words, 1)
    yield from dumped(session, _profile(session, words[0]))


def act_prof_dump_member(session: Session, words: list[str]) -> Iterator[str]:
    """Show a member: act_prof_dump_member <action profile name> <member handle>"""
    check_count(words, 2)
    wanted = number(words[1], "member handle") + 1
    found = [member for member in session.engine.members(_profile(session, words[0]).name) if member.id == wanted]
    if not found:
        raise CommandError("Invalid table operation (INVALID_MBR_HANDLE)")
    yield from _member(*found)


def act_prof_dump_group(session: Session, words: list[str]) -> Iterator[str]:
    """Show a group: act_prof_dump_group <action profile name> <group handle>"""
    check_count(words, 2)
    yield from _members(_group(session, _profile(session, words[0]), words[1]))


def dumped(session: Session, profile: ActionProfile) -> Iterator[str]:
    """Yield the profile's members and groups."""
    yield from (RULE, "MEMBERS")
    for member in session.engine.members(profile.name):
        yield from (STARS, *_member(member))
    if profile.selector is None:
        return
    yield from (RULE, "GROUPS")
    for group in session.engine.member_groups(profile.name):
        yield from (STARS, *_members(group))


def table_indirect_add(session: Session, words: list[str]) -> Iterator[str]:
    """Add an entry that refers to a member:
    table_indirect_add <table name> <match fields> => <member handle> [priority]"""
    yield from _add(session, words, lambda handle: MemberRef(member=handle + 1))


def table_indirect_add_with_group(session: Session, words: list[str]) -> Iterator[str]:
    """Add an entry that refers to a group:
    table_indirect_add_with_group <table name> <match fields> => <group handle> [priority]"""
    yield from _add(session, words, lambda handle: GroupRef(group=handle + 1))


def table_indirect_delete(session: Session, words: list[str]) -> Iterator[str]:
    """Delete an entry of an indirect table: table_indirect_delete <table name> <entry handle>"""
    check_count(words, 2)
    entry = session.entry(session.table(words[0]), words[1])
    session.engine.delete(entry.table, entry.key, entry.priority)
    yield f"Deleting entry {words[1]} from {words[0]}"


def _add(session: Session, words: list[str], via: Callable[[int], Via]) -> Iterator[str]:
    check_count(words, 3, MANY)
    table = session.table(words[0])
    if "=>" not in words[:-1]:
        raise CommandError("an indirect entry needs => and a handle after its match fields")
    at = words.index("=>")
    typed = key(table, words[1:at])
    entry = Entry(
        table=table.name,
        key=normal(table, typed),
        typed=typed,
        priority=priority_of(table, words[-1]),
        via=via(number(words[at + 1], "handle")),
    )
    session.engine.insert(entry)
    yield f"Adding entry to indirect match table {table.name}"
    yield f"Entry has been added with handle {session.handle(entry)}"


def _member(member: Member) -> Iterator[str]:
    data = ", ".join(map(short, member.parameters))
    yield from (f"Dumping member {member.id - 1}", f"Action entry: {member.action} - {data}")


def _members(group: MemberGroup) -> Iterator[str]:
    listed = ", ".join(str(member.member - 1) for member in group.members)
    yield from (f"Dumping group {group.id - 1}", f"Members: [{listed}]")


def _profile(session: Session, name: str) -> ActionProfile:
    return find("action profile", session.program.profiles.values(), name)


def _action(session: Session, profile: ActionProfile, name: str) -> Action:
    actions = [action for table in session.program.tables if table.profile == profile.name for action in table.actions]
    return find(f"action of action profile {profile.name}", actions, name)


def _group(session: Session, profile: ActionProfile, handle: str) -> MemberGroup:
    wanted = number(handle, "group handle") + 1
    for group in session.engine.member_groups(profile.name):
        if group.id == wanted:
            return group
    raise CommandError("Invalid table operation (INVALID_GRP_HANDLE)")


def _free(taken: set[int]) -> int:
    return next(number for number in range(1, len(taken) + 2) if number not in taken)


def _of_table(name: str, command: Command) -> Command:
    """Return a command as BMv2's older tool has it, with the table's name instead of the action profile's."""

    def carried_out(session: Session, words: list[str]) -> Iterator[str]:
        check_count(words, 1, MANY)
        table = session.table(words[0])
        if table.profile is None:
            raise CommandError("Cannot run this command on non-indirect table")
        yield from command(session, [table.profile, *words[1:]])

    said = (command.__doc__ or "").replace(command.__name__, name)
    carried_out.__doc__ = said.replace("<action profile name>", "<table name>")
    return carried_out


OLDER = {
    "table_indirect_create_member": act_prof_create_member,
    "table_indirect_modify_member": act_prof_modify_member,
    "table_indirect_delete_member": act_prof_delete_member,
    "table_indirect_create_group": act_prof_create_group,
    "table_indirect_delete_group": act_prof_delete_group,
    "table_indirect_add_member_to_group": act_prof_add_member_to_group,
    "table_indirect_remove_member_from_group": act_prof_remove_member_from_group,
    "table_dump_member": act_prof_dump_member,
    "table_dump_group": act_prof_dump_group,
}
COMMANDS: Commands = {
    command.__name__: command
    for command in (
        *(act_prof_create_member, act_prof_modify_member, act_prof_delete_member, act_prof_create_group),
        *(act_prof_delete_group, act_prof_add_member_to_group, act_prof_remove_member_from_group, act_prof_dump),
        *(act_prof_dump_member, act_prof_dump_group),
        *(table_indirect_add, table_indirect_add_with_group, table_indirect_delete),
    )
} | {name: _of_table(name, command) for name, command in OLDER.items()}
