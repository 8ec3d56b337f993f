"""Those that the network or a server carries out."""
