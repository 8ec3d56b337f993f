"""The worker's side of the protocol, without sockets and clocks: core.h first."""
