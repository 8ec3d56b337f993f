"""The measurement of zero-memory.toml. PyTorch is imported by the cells, so that results can be read without it."""

from dataclasses import asdict

from msgspec import structs

from kofn.experiments.claims import Verdict
from kofn_common.config.compress import CompressSection
from kofn_common.results.memory import KINDS, Memory
from kofn_common.wire.packet import WORD_BITS
from kofn_host import zero

NEAR = 0.1
"""The permitted error of a kind of memory."""


class LockstepJob:
    """A job of one worker in lockstep, for kofn_torch.zero."""

    def __init__(self, calls, mean):
        self._calls, self._mean = calls, mean

    def connect(self, units, settings):
        return self._calls, self._mean

    def stepped(self, shared, memory):
        """Do nothing: there is no controller."""


def row(cell):
    own, job = cell.point.own, cell.config.job
    layer = own["width"] ** 2 + own["width"]
    elements = own["layers"] * layer
    if own.get("sharded", True):
        chosen = {name: own[name] for name in ("stage", "bits", "residual") if name in own}
        settings = zero.ZeroSettings(**{"bits": 32, "freeze_step": 1, **chosen})
        found = max(_sharded(settings, job, own, elements), key=lambda memory: memory.total)
        formula = zero.expected(settings, elements, job.workers, layer=layer, block=own["block"])
    else:
        found, formula = _not_sharded(own), zero.not_sharded(elements)
    errors = {name: _error(getattr(found, name), getattr(formula, name)) for name in KINDS}
    kind = max(errors, key=errors.get)
    return {
        **{f"{name}_bytes": size for name, size in asdict(found).items()},
        "total_bytes": found.total,
        "formula_bytes": formula.total,
        "off": errors[kind],
        "off_kind": kind,
        "fault": f"{kind} are {errors[kind]:.1%} off their formula" if errors[kind] > NEAR else None,
    }


def _error(found, formula):
    """Return the error as a share of the formula's value."""
    return abs(found - formula) / max(formula, 1)


def _sharded(settings, job, own, elements):
    """Return the memory of each worker, a thread each, after two steps."""
    import kofn_torch  # noqa: PLC0415  # needs kofn[torch]

    team, switch = zero.Lockstep(job.workers), None
    if settings.bits < 32:
        switch = zero.LockstepSwitch(
            team,
            elements,
            job=structs.replace(job, words=own["block"] * settings.bits // WORD_BITS),
            compress=CompressSection(codec=zero.CODECS[settings.bits], residual=settings.residual),
            average="contributors" if settings.votes_on_momentum else "gradients",
            k=job.workers,
            seed=1,
        )

    def train(rank):
        calls, mean = zero.LockstepCalls(team, rank), None if switch is None else zero.LockstepMean(switch, rank)
        model, own_job = _perceptron(own), LockstepJob(calls, mean)
        optimizer = kofn_torch.zero(model, stage=settings.stage, bits=settings.bits, freeze_step=1, job=own_job)
        for _ in range(2):
            _backward(model)
            optimizer.step()
        return optimizer.memory()

    return team.run(train)


def _not_sharded(own):
    import torch  # noqa: PLC0415  # needs kofn[torch]

    model = _perceptron(own)
    optimizer, parameters = torch.optim.Adam(model.parameters()), [*model.parameters()]
    _backward(model)
    optimizer.step()
    state = [tensor for kept in optimizer.state.values() for tensor in kept.values() if tensor.ndim]
    gradients = [tensor.grad for tensor in parameters if tensor.grad is not None]
    sizes = (sum(tensor.nbytes for tensor in tensors) for tensors in (parameters, gradients, state))
    return Memory(**dict(zip(("parameters", "gradients", "optimizer"), sizes, strict=True)))


def _perceptron(own):
    from torch import nn  # noqa: PLC0415  # needs kofn[torch]

    return nn.Sequential(*(nn.Linear(own["width"], own["width"]) for _ in range(own["layers"])))


def _backward(model):
    import torch  # noqa: PLC0415  # needs kofn[torch]

    model(torch.ones(1, model[0].in_features)).sum().backward()


def claims(experiment):
    frame = experiment.rows()
    for workers, rows in frame.groupby("job.workers", sort=False):
        most = rows.loc[rows["off"].idxmax()]
        yield Verdict(
            claim=f"{workers} workers: every kind within {NEAR:.0%} of its formula",
            holds=bool(most["off"] <= NEAR),
            numbers=f"{most['off']:.1%} at most: {most['off_kind']} of stage {most['own.stage']}, {most['contender']}",
        )
