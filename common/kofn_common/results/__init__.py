"""The files of a run: their paths, and their readers."""
