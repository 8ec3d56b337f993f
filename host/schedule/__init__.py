"""Which gradient is computed first, in which pieces it leaves, and which forward pass waits for what."""
