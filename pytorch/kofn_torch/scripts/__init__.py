"""Programs: a training for comparisons, and the server that hands out a job to its workers."""
