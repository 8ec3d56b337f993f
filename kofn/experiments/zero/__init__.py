"""`kofn experiment zero`: the cost in steps of few bits in a sharded training."""
