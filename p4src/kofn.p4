// kofn: in-network aggregation of gradient blocks from the fastest k of n workers.
//
//   parser -> admission -> slot -> words -> answer -> deliver -> deparser
//                |         (leaf)             ^
//                |           +-> measure      | RESULT to all, LATE / STALE / FORMAT_MISMATCH to one
//                +-> forward (not kofn)
//
// Each box is a file, except that answer is in deliver.p4 and deparser in parser.p4. docs/explanation/protocol.md has the rules.
// In a tree a leaf has `leaf` in place of `slot`, and the root tells its leaves (tell.p4, bitmaps.p4): docs/reference/tree.md.

#include <core.p4>
#include <v1model.p4>

#include "headers.p4"
#include "metadata.p4"
#include "parser.p4"
#include "checksum.p4"
#include "admission.p4"
#include "is_ahead.p4"
#include "slot.p4"
#include "tell.p4"
#include "leaf_due.p4"
#include "leaf_below.p4"
#include "leaf_above.p4"
#include "leaf.p4"
#include "bitmaps.p4"
#include "accumulator.p4"
#include "votes.p4"
#include "words.p4"
#include "measure.p4"
#include "deliver.p4"
#include "forward.p4"

control ingress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata) {
    Admission() admission;
    register<bit<256>>(RACK_SLOTS) members;
    Slot(members) slot;
    Tell() tell;
    Leaf() leaf;
    Bitmaps(members) bitmaps;
    Words() words;
    Measure() measure;
    Answer() answer;
    Forward() forward;
    counter(VERDICTS, CounterType.packets_and_bytes) verdicts;
    counter(PORTS, CounterType.packets) refused;

    apply {
        if (hdr.udp.isValid() && hdr.udp.dst_port == KOFN_PORT) {
            admission.apply(hdr, meta, standard_metadata);
            if (meta.verdict == verdict_t.ADMITTED) {
                if (meta.leaf) { leaf.apply(hdr, meta, standard_metadata); } else { slot.apply(hdr, meta); }
                if (meta.from_leaf) { tell.apply(hdr, meta); }
                words.apply(hdr, meta);
                bitmaps.apply(hdr, meta);
                measure.apply(hdr, meta, standard_metadata);
            }
            verdicts.count((bit<32>)(bit<8>)meta.verdict);
            answer.apply(hdr, meta, standard_metadata);
        } else {
            forward.apply(hdr, meta, standard_metadata);
            if (meta.refused) { verdicts.count((bit<32>)(bit<8>)meta.verdict); }
        }
        if (meta.refused) { refused.count((bit<32>)standard_metadata.ingress_port); }
    }
}

control egress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata) {
    Deliver() deliver;
    Prune() prune;

    apply {
        if (hdr.kofn.isValid()) { deliver.apply(hdr, meta, standard_metadata); }
        else { prune.apply(standard_metadata); }
    }
}

V1Switch(KofnParser(), CheckSums(), ingress(), egress(), RenewSums(), KofnDeparser()) main;
