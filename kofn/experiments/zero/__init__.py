"""`kofn experiment zero`: the cost of few bits in a sharded training, in steps."""
