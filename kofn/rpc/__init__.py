"""The management network's messages: kofn.proto, and a message as JSON (`document`); who may speak there (`security`).

The gRPC stubs are generated (`make proto`) and committed, so that nothing is generated on a user's machine.
"""
