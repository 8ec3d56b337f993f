"""The collectives that the network or a server carries out."""
