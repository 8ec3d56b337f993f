"""The limits that packets, switch and configuration share: slots, words, workers, racks, jobs, parts.

`wire.header_text` writes them into p4src/sizes.p4 and kofn_header.h (`make header`), so a limit has one home.
"""

SLOT_BITS = 12
SLOTS = 1 << SLOT_BITS
"""Slots of all jobs on a switch together; 4,096 x 8 KiB = 32 MiB of sums."""

WORDS_MAX = 32
"""The most words in a packet: 8 KiB of values, which a 9,000-byte MTU carries."""

VOTE_WORDS = 4
"""The most words of votes in a packet; the packet may have further words, as room for planes."""

RACK_WORKERS_MAX = 64
"""The most workers at one switch, whose member bitmap has 64 bits for each part (docs/reference/protocol.md)."""

RACKS_MAX = 16
"""The most racks of a tree: BMv2 lets a packet grow by their bitmaps, 512 bytes (docs/reference/tree.md)."""

WORKERS_MAX = RACK_WORKERS_MAX * RACKS_MAX

PARTS = 4
"""The most contributions of one worker to one block."""

PORTS = 512
"""The port numbers of a switch: v1model has 9 bits for them."""

JOB_MAX = 127
"""The highest id of a job; an id with the top bit set is the id of the job's exact sums."""

JOBS = 2 * (JOB_MAX + 1)
"""The ids of jobs and of exact sums."""

WEIGHT_UNIT = 256
"""The weight of one gradient in full."""

WEIGHT_MAX = 1023 * WEIGHT_UNIT
"""The largest weight of a contribution."""
