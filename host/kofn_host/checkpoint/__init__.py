"""Checkpoints of a job: a folder of files, and the part of a worker that writes them."""
