"""One worker's side of a job in the network: protocol, ledger and sockets together. driver.py decides."""
