"""A configuration that waits for COMMIT, and what was written for it since it was saved."""

from finsy.proto import p4r

from kofn.switch.engine.engine import Engine
from kofn.switch.p4runtime.pipeline import Pipeline


class Saved:
    """What is written is tried at once, on a switch of its own without ports, and done again on the real one at COMMIT.

    Reads see what was written; the running program goes on as it was.
    """

    def __init__(self, engine: Engine, config: p4r.ForwardingPipelineConfig) -> None:
        """Load the program into a switch like `engine`.  Raises SwitchError when it cannot be run."""
        trial = engine.without_ports()
        self.pipeline = Pipeline(trial, config)
        self.pipeline.check(generated=False)
        trial.load(self.pipeline.document)
        self._updates: list[p4r.Update] = []

    def write(self, update: p4r.Update) -> None:
        """Carry out one update; raises SwitchError."""
        self.pipeline.entities.write(update)
        self._updates.append(update)

    def commit(self, engine: Engine) -> Pipeline:
        """Make it the running program of `engine`, with all that was written."""
        pipeline = Pipeline(engine, self.pipeline.config)
        engine.load(pipeline.document)
        for update in self._updates:
            pipeline.entities.write(update)
        return pipeline
