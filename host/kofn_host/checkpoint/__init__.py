"""Checkpoints of a job: a folder of files, and the part of each worker that fills it."""
