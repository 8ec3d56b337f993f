// Tells the controller when the first block of each worker's iteration reached its slot, late ones too.

control Measure(in headers_t hdr, in metadata_t meta, in standard_metadata_t standard_metadata) {
    register<bit<32>>(1) sequences;

    apply {
        if (hdr.kofn.block == 0 && meta.verdict != verdict_t.NOT_READY) {
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
