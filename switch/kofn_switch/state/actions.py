"""The control plane's actions: looked up and checked, with parameters for the native part."""

from collections.abc import Mapping, Sequence

from kofn_switch.compiler.codegen.layout import mask_of
from kofn_switch.compiler.codegen.matching import words
from kofn_switch.compiler.ir.program import Action
from kofn_switch.errors import InvalidEntry


def find_action(owner: str, actions: Mapping[str, Action], name: str, parameters: Sequence[int]) -> Action:
    """Check the parameters of an action and return the action; `owner` names the table or profile. Raise
    InvalidEntry."""
    if name not in actions:
        raise InvalidEntry(f"{owner} has no action {name}; it has {', '.join(actions) or 'none'}")
    action = actions[name]
    if len(parameters) != len(action.parameters):
        expected = ", ".join(f"{item.name}: bit<{item.width}>" for item in action.parameters)
        raise InvalidEntry(f"action {name} takes ({expected}), not {len(parameters)} parameters")
    for value, item in zip(parameters, action.parameters, strict=True):
        check_value(value, item.width, f"parameter {item.name} of action {name}")
    return action


def parameter_words(action: Action, parameters: Sequence[int], limbs: int) -> list[int]:
    """Return parameters as limbs, padded to `limbs`."""
    own = [w for value, item in zip(parameters, action.parameters, strict=True) for w in words(value, item.width)]
    return own + [0] * (limbs - len(own))


def check_value(value: int, width: int, what: str) -> None:
    """Raise InvalidEntry when the value does not fit the width."""
    if value < 0 or value >> width:
        raise InvalidEntry(f"{what} is {value:#x}; bit<{width}> holds 0..{mask_of(width):#x}")
