// Tells the controller when the first counted contribution of each worker's iteration reaches its slot, late or not.
// It may be of any block: an iteration need not send all blocks, and packets are reordered. A packet that is too far ahead does
// not count, since the worker's own iterations would be earlier than its iteration.

control Measure(in headers_t hdr, in metadata_t meta, in standard_metadata_t standard_metadata) {
    register<bit<32>>(1) sequences;
    register<bit<64>>(WORKERS) latest;  // generation ++ iteration of a worker's latest first contribution

    apply {
        if (meta.counted && meta.verdict != verdict_t.AHEAD) {
            bit<32> worker = 18w0 ++ hdr.kofn.job ++ hdr.kofn.worker[5:0];
            bit<64> iteration = hdr.kofn.generation ++ hdr.kofn.iteration;
            bit<64> before;
            latest.read(before, worker);
            if (iteration > before) {
                latest.write(worker, iteration);
                bit<32> sequence;
                sequences.read(sequence, 0);
                sequence = sequence + 1;
                sequences.write(0, sequence);
                digest<arrival_t>(1, {
                    sequence, hdr.kofn.job, hdr.kofn.worker, hdr.kofn.iteration, (bit<8>)meta.verdict,
                    standard_metadata.ingress_global_timestamp
                });
            }
        }
    }
}
