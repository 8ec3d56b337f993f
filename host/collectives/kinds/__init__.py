"""What job.collective names: a file each, of that name; collectives/job_collective.py has what each one says."""
