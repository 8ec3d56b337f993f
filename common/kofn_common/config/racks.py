"""Rules across keys for a job whose racks have a switch each: a tree."""

from collections.abc import Sequence

from kofn_common.config.compress import ONE_BIT, CompressSection
from kofn_common.config.errors import ConfigError
from kofn_common.config.job import JobSection
from kofn_common.config.late_rules import RuleChoice
from kofn_common.config.network import NetworkSection
from kofn_common.config.objectives import check_objective
from kofn_common.config.policy import PolicySection
from kofn_common.wire.sizes import RACK_WORKERS_MAX, RACKS_MAX, SLOTS

TREE_RULE: RuleChoice = "stash"
"""The default rule in a tree, whose lanes have room for one contribution of each worker."""

TREE_RULES = ("auto", "stash", "abort", "drop")


def check_switches(job: JobSection, network: NetworkSection, switches: int) -> None:
    """Check that a switch for each rack can sum the rack's workers, and one more switch the racks."""
    racks, workers = job.racks, job.workers
    if racks > RACKS_MAX:
        raise ConfigError(f"job.racks must be 1 to {RACKS_MAX}, got {racks}")
    if workers // racks > RACK_WORKERS_MAX:
        raise ConfigError(
            f"job.workers must be 1 to {RACK_WORKERS_MAX * racks} with job.racks = {racks}, got {workers}"
        )
    if network.p4runtime_ports(switches)[-1] > 65535:
        raise ConfigError(
            f"network.p4runtime_port must leave ports up to 65535 for {switches} switches, got {network.p4runtime_port}"
        )


def check_racks(job: JobSection, policy: PolicySection, compress: CompressSection, objectives: Sequence[str]) -> None:
    """Check that each rack has the same number of workers, and that leaves can do what the job asks for."""
    racks, workers = job.racks, job.workers
    if workers % racks:
        raise ConfigError(f"job.workers must be a multiple of job.racks ({racks}), got {workers}")
    slots = job.slots + job.exact_slots
    if racks > 1 and slots > SLOTS // 2:
        raise ConfigError(
            f"job.slots and job.exact_slots must be at most {SLOTS // 2} together with job.racks = {racks}, got"
            f" {slots}: a leaf keeps two sums for each slot"
        )
    if racks > 1 and job.collective == "server":
        raise ConfigError("job.collective must not be 'server' with job.racks > 1: a server is at one switch")
    if racks > 1 and policy.late_gradient not in TREE_RULES:
        raise ConfigError(
            f"policy.late_gradient must be one of {', '.join(TREE_RULES)} with job.racks, got"
            f" {policy.late_gradient!r}: a lane of a tree has room for one contribution of each worker"
        )
    for text in objectives if racks > 1 else ():
        named = check_objective(text, workers, "run.trials")
        if named is not None and named.rule is not None and named.rule not in TREE_RULES:
            raise ConfigError(f"run.trials must name one of {', '.join(TREE_RULES[1:])} with job.racks, got {text!r}")
    if racks > 1 and compress.codec == ONE_BIT:
        raise ConfigError(f"compress.codec must not be {ONE_BIT!r} with job.racks > 1: a leaf sums no votes")
