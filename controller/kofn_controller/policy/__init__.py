"""Chooses k and the policy for late gradients from an estimate. No clock, no I/O.

control_loop (when) -> chooser (which option, and whether the gain is sure) -> prediction, process, expected_time
(times), worth (of an iteration) -> objective (costs)
"""
