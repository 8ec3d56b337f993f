"""One worker of a job in the network: protocol, ledger and sockets put together."""
