"""From an estimate to the rule and k in force. No clock, no I/O.

decide (when) -> chooser (which option, and whether the gain is sure) -> prediction, process (times), progress (worth)
-> choose (costs)
"""
