"""Actions of entries, in messages and in the engine: actions with parameters, members, groups and action sets."""

from collections.abc import Sequence

from finsy.proto import p4r

from kofn_switch.engine.engine import Engine
from kofn_switch.p4runtime.bytestring import decode, encode
from kofn_switch.p4runtime.index import Index
from kofn_switch.p4runtime.p4info import ActionProfile, ActionUse, P4Info, Table
from kofn_switch.p4runtime.refusal import choices, denied, exhausted, invalid, unimplemented
from kofn_switch.state.entries import ActionSet, Entry, GroupRef, MemberRef, Via, WeightedAction

Call = tuple[str, tuple[int, ...]]  # an action's name and its parameters in order


def decode_action(owner: str, uses: Index[ActionUse], message: p4r.Action, *, default: bool = False) -> Call:
    """Return the action of a message; `owner` is the table or profile for refusals."""
    use = uses.get(message.action_id)
    if default and not use.as_default:
        raise denied(f"action {use.name} may not be the default action of {owner} (table_only)")
    if not default and not use.in_entries:
        raise denied(f"action {use.name} may only be the default action of {owner} (default_only)")
    values: dict[int, int] = {}
    for given in message.params:
        parameter = use.action.parameters.get(given.param_id)
        if parameter.id in values:
            raise invalid(f"parameter {parameter.name} of action {use.name} is given twice")
        values[parameter.id] = decode(given.value, parameter.width, f"parameter {parameter.name} of action {use.name}")
    missing = [parameter.name for parameter in use.action.parameters if parameter.id not in values]
    if missing:
        raise invalid(f"action {use.name} needs a value for {', '.join(missing)}")
    return use.name, tuple(values[parameter.id] for parameter in use.action.parameters)


def encode_action(p4info: P4Info, name: str, parameters: tuple[int, ...]) -> p4r.Action:
    """Return the message of an action."""
    action = p4info.actions.named(name)
    message = p4r.Action(action_id=action.id)
    for parameter, value in zip(action.parameters, parameters, strict=True):
        message.params.add(param_id=parameter.id, value=encode(value))
    return message


def decode_direct(table: Table, message: p4r.TableAction, *, default: bool = False) -> Call:
    """Return the action of a message for a table without an action profile."""
    kind = message.WhichOneof("type")
    if kind != "action":
        raise invalid(f"table {table.name} takes an action, not {kind or 'an unset one'}")
    return decode_action(f"table {table.name}", table.actions, message.action, default=default)


def decode_via(table: Table, profile: ActionProfile, message: p4r.TableAction) -> Via:
    """Return the member, group or action set that an entry of an indirect table refers to."""
    kind = message.WhichOneof("type")
    if kind == "action_profile_member_id":
        return MemberRef(member=message.action_profile_member_id)
    if kind == "action_profile_group_id" and profile.selector:
        return GroupRef(group=message.action_profile_group_id)
    if kind == "action_profile_action_set" and profile.selector:
        return _decode_set(profile, message.action_profile_action_set)
    allowed = ["action_profile_member_id"]
    allowed += ["action_profile_group_id", "action_profile_action_set"] if profile.selector else []
    raise invalid(f"table {table.name} takes {choices(allowed)}, not {kind or 'an unset action'}")


def _decode_set(profile: ActionProfile, message: p4r.ActionProfileActionSet) -> ActionSet:
    if message.action_selection_mode == p4r.ActionProfileActionSet.RANDOM:
        raise unimplemented(f"RANDOM selection: {profile.name} selects by the program's hash")
    _check_size_semantics(profile, message)
    owner, actions = f"action profile {profile.name}", []
    for given in message.action_profile_actions:
        refuse_watch(profile, given)
        name, parameters = decode_action(owner, profile.actions, given.action)
        actions.append(WeightedAction(action=name, parameters=parameters, weight=decode_weight(profile, given.weight)))
    size = group_size(profile, [action.weight for action in actions])
    if 0 < profile.max_group_size < size:
        raise invalid(
            f"the size of an action set of {profile.name} must be at most {profile.max_group_size}, got {size}"
        )
    return ActionSet(actions=tuple(actions))


def _check_size_semantics(profile: ActionProfile, message: p4r.ActionProfileActionSet) -> None:
    kinds = p4r.ActionProfileActionSet
    own = kinds.SUM_OF_MEMBERS if profile.by_members else kinds.SUM_OF_WEIGHTS
    if message.size_semantics not in (kinds.DEFAULT_SIZE_DETERMINED_BY_ACTION_SELECTOR, own):
        name = kinds.SizeSemantics.Name(message.size_semantics)
        raise unimplemented(f"{name}: the sizes of {profile.name} are {kinds.SizeSemantics.Name(own)}")


def decode_weight(profile: ActionProfile, weight: int) -> int:
    """Return the weight of a member; 1 if clients do not set the weights of this profile."""
    if not profile.weighted:
        if weight:
            raise invalid(f"weight {weight}: clients do not set the weights of {profile.name}; leave them unset")
        return 1
    if weight < 1:
        raise invalid(f"the weight of a member of {profile.name} must be 1 or more, got {weight}")
    if 0 < profile.max_member_weight < weight:
        raise invalid(
            f"the weight of a member of {profile.name} must be 1 to {profile.max_member_weight}, got {weight}"
        )
    return weight


def encode_weight(profile: ActionProfile, weight: int) -> int:
    """Return the weight as the client wrote it."""
    return weight if profile.weighted else 0


def refuse_watch(profile: ActionProfile, message: p4r.ActionProfileAction | p4r.ActionProfileGroup.Member) -> None:
    """Refuse a watched port, because the switch ignores the state of ports."""
    if message.WhichOneof("watch_kind") is not None:
        raise unimplemented(f"a watched port of a member of {profile.name}: the state of ports is ignored")


def encode_via(p4info: P4Info, profile: ActionProfile, entry: Entry) -> p4r.TableAction:
    """Return the message for the reference of an indirect table's entry."""
    match entry.via:
        case MemberRef(member=member):
            return p4r.TableAction(action_profile_member_id=member)
        case GroupRef(group=group):
            return p4r.TableAction(action_profile_group_id=group)
        case ActionSet(actions=actions):
            message = p4r.TableAction()
            message.action_profile_action_set.SetInParent()
            for weighted in actions:
                message.action_profile_action_set.action_profile_actions.add(
                    action=encode_action(p4info, weighted.action, weighted.parameters),
                    weight=encode_weight(profile, weighted.weight),
                )
            return message
        case None:
            raise invalid(f"an entry of table {entry.table} refers to nothing")


def group_size(profile: ActionProfile, weights: Sequence[int]) -> int:
    """Return the size of a group with these weights, in the unit of the profile's sizes."""
    return len(weights) if profile.by_members else sum(weights)


def check_total(engine: Engine, profile: ActionProfile, more: int) -> None:
    """Refuse a change that would make all groups together larger than the selector."""
    members, weights = engine.profile_use(profile.name)
    total = (members if profile.by_members else weights) + more
    if more > 0 and 0 < profile.size < total:
        counted = "members" if profile.by_members else "weights"
        raise exhausted(f"all groups of {profile.name} must have at most {profile.size} {counted}, got {total}")
