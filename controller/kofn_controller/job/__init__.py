"""The sessions of jobs: members, phases, recovery, gRPC services."""
