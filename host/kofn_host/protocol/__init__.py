"""The worker's side of the protocol, without sockets and clocks; read core.h first."""
