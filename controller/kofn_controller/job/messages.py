"""The controller's messages to its workers (common/kofn_common/rpc/kofn.proto)."""

from collections.abc import Mapping, Sequence

from kofn_common.config.late_rules import LatePolicy
from kofn_common.rpc import kofn_pb2 as pb


def welcome(
    *,
    workers: int,
    k: int,
    first_iteration: int,
    peers: Sequence[pb.PeerAddress],
    generation: int,
    running: bool,
    checkpoint: int,
    decision: int,
    late_policy: LatePolicy,
) -> pb.ControllerMessage:
    """Return the first message of a stream."""
    return pb.ControllerMessage(
        welcome=pb.Welcome(
            workers=workers,
            k=k,
            first_iteration=first_iteration,
            peers=peers,
            generation=generation,
            running=running,
            checkpoint=checkpoint,
            decision=decision,
            late_gradient=late_policy.rule,
            age_weight=late_policy.age_weight,
        )
    )


def decision(k: int, number: int, late_policy: LatePolicy) -> pb.ControllerMessage:
    """Return the message that k or the policy for late gradients has changed."""
    rule, weight = late_policy
    return pb.ControllerMessage(decision=pb.Decision(k=k, number=number, late_gradient=rule, age_weight=weight))


def peers(present: Sequence[pb.PeerAddress]) -> pb.ControllerMessage:
    return pb.ControllerMessage(peers=pb.Peers(peers=present))


def regroup(generation: int) -> pb.ControllerMessage:
    return pb.ControllerMessage(regroup=pb.Regroup(generation=generation))


def resume(generation: int) -> pb.ControllerMessage:
    """Return the message after which workers fetch missing results from peers and continue."""
    return pb.ControllerMessage(resume=pb.Resume(generation=generation))


def checkpoint(iteration: int, files: Mapping[str, str], control: pb.ControlState) -> pb.ControllerMessage:
    """Return the message that has a saved checkpoint completed."""
    return pb.ControllerMessage(checkpoint=pb.Checkpoint(iteration=iteration, files=files, control=control))


def link(found: pb.Link) -> pb.ControllerMessage:
    return pb.ControllerMessage(link=found)


def stop(reason: str) -> pb.ControllerMessage:
    return pb.ControllerMessage(stop=pb.Stop(reason=reason))
