"""The capabilities of a job.collective; its communicators are in kofn_host."""
