"""The values of job.collective, one file each; collectives/job_collective.py has their attributes."""
