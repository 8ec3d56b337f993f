"""simple_switch_CLI: its commands, carried out by the running switch, and the client that sends them.

The syntax and the answers are those of BMv2's simple_switch_CLI; the protocol between client and switch is not Thrift
but a line of text to the switch and a line of JSON, the answer's text, back.
"""
