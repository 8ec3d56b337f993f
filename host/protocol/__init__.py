"""The worker's side of the protocol: no socket, no clock."""
