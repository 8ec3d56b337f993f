"""A configuration that waits for COMMIT, with the updates that were written to it."""

from finsy.proto import p4r

from kofn_switch.engine.engine import Engine
from kofn_switch.p4runtime.pipeline import Pipeline
from kofn_switch.p4runtime.refusal import Refused


class Saved:
    """A saved program. Its updates run at once on a trial switch without ports, and at COMMIT on the real switch.

    Reads see these updates; the running program stays as it is.
    """

    def __init__(self, engine: Engine, config: p4r.ForwardingPipelineConfig) -> None:
        """Load the program into a switch like `engine`. Raise SwitchError when it cannot be run."""
        trial = engine.without_ports()
        self.pipeline = Pipeline(trial, config)
        self.pipeline.check(generated=False)
        trial.load(self.pipeline.document)
        self._updates: list[p4r.Update] = []

    def write_all(self, request: p4r.WriteRequest) -> list[Refused | None]:
        """Carry out updates on the trial switch, as Entities.write_all does."""
        outcomes = self.pipeline.entities.write_all(request)
        self._updates += [update for update, refused in zip(request.updates, outcomes, strict=True) if not refused]
        return outcomes

    def commit(self, engine: Engine) -> Pipeline:
        """Make the saved program the running program of `engine`, with all updates."""
        pipeline = Pipeline(engine, self.pipeline.config)
        engine.load(pipeline.document)
        for update in self._updates:
            pipeline.entities.write(update)
        return pipeline
