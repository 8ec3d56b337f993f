"""The columns of an experiment's results that are known before a cell has run: those that no function of the file
adds."""

from kofn.report.frames import SUMMARY, FrameSchema, TrialSetting

TRIAL = FrameSchema("a trial of a run or a simulation", (TrialSetting, *SUMMARY), without=("compressed", "seed"))


def scaled_trial() -> FrameSchema:
    """Return the columns of a trial that is simulated by iterations."""
    from kofn.sim.times import ScaledTimes  # noqa: PLC0415  # the model and its libraries

    return FrameSchema("a trial simulated by iterations", (ScaledTimes,), without=("wall_s", "seed"))
