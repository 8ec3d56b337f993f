"""simple_switch_CLI: its commands, carried out by the running switch, and the client that sends them.

Syntax and answers are those of BMv2's simple_switch_CLI. The protocol is not Thrift: a command is a line of text, and
the answer a line of JSON that holds the answer's text.
"""
