"""What a controller says to its workers, as messages of rpc/kofn.proto."""

from collections.abc import Sequence

from rpc import kofn_pb2 as pb


def welcome(
    *,
    workers: int,
    k: int,
    first_iteration: int,
    peers: Sequence[pb.PeerAddress],
    generation: int,
    running: bool,
    decision: int,
) -> pb.ControllerMessage:
    """The first message of every stream."""
    return pb.ControllerMessage(
        welcome=pb.Welcome(
            workers=workers,
            k=k,
            first_iteration=first_iteration,
            peers=peers,
            generation=generation,
            running=running,
            decision=decision,
        )
    )


def decision(k: int, number: int) -> pb.ControllerMessage:
    """Another k is in force in the switch."""
    return pb.ControllerMessage(decision=pb.Decision(k=k, number=number))


def peers(present: Sequence[pb.PeerAddress]) -> pb.ControllerMessage:
    """Who is attached now."""
    return pb.ControllerMessage(peers=pb.Peers(peers=present))


def regroup(generation: int) -> pb.ControllerMessage:
    """Stop, and answer."""
    return pb.ControllerMessage(regroup=pb.Regroup(generation=generation))


def resume(generation: int) -> pb.ControllerMessage:
    """Fetch what peers have, then go on."""
    return pb.ControllerMessage(resume=pb.Resume(generation=generation))


def stop(reason: str) -> pb.ControllerMessage:
    """The job is over."""
    return pb.ControllerMessage(stop=pb.Stop(reason=reason))
