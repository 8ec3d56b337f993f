"""The values of job.collective, one file each; kofn_common's collectives/job_collective.py has their attributes."""
