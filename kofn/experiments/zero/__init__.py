"""`kofn experiment zero`: what few bits cost a sharded training in steps."""
