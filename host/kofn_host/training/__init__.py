"""Data-parallel training of one worker."""
