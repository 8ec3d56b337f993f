"""`kofn chaos`: the same training under every kind of fault."""
