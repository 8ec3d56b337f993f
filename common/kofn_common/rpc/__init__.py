"""The management network's messages: kofn.proto, messages as JSON (`document`), authentication (`security`).

The gRPC stubs are generated (`make proto`) and committed, so that no stub is generated on a user's machine.
"""
