"""Generated gRPC stubs of kofn.proto (`make proto`), committed so that nothing is generated on a user's machine."""
