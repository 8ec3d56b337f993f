// Whether a packet's iteration is further ahead of its slot's than any worker can be. Such a packet is damaged or forged, and
// would make the slot useless for all iterations up to its own.
//
// The workers number all blocks alike, and number q is summed in slot q modulo `turn`, the number of slots. An iteration has
// at least one block. So within a generation a slot's next block belongs to one of the next `turn` iterations. Exact sums
// (job + 128) have no such limit: their slots are unused between calls, while the iterations of the job continue.

control IsAhead(in headers_t hdr, in bit<32> turn, in bit<96> block_id, out bool ahead) {
    apply {
        ahead = hdr.kofn.job <= JOB_MAX && hdr.kofn.generation == block_id[95:64]
            && block_id[63:32] != 0 && hdr.kofn.iteration > block_id[63:32] && hdr.kofn.iteration - block_id[63:32] > turn;
    }
}
