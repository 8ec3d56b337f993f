// Operators at several widths, signed and unsigned: modular and saturating, shifts beyond the width, comparisons, casts,
// slices and concatenations.  The results replace the second header's fields.

#include <core.p4>
#include <v1model.p4>

#define PAIR(NAME, TYPE, WIDTH)  TYPE<WIDTH> NAME##_a; TYPE<WIDTH> NAME##_b;

// a and b through all operators that keep the width; the comparisons as a bit each.
#define RESULTS(NAME, TYPE, WIDTH) \
    TYPE<WIDTH> NAME##_sum; TYPE<WIDTH> NAME##_difference; TYPE<WIDTH> NAME##_product; \
    TYPE<WIDTH> NAME##_saturated_sum; TYPE<WIDTH> NAME##_saturated_difference; \
    TYPE<WIDTH> NAME##_and; TYPE<WIDTH> NAME##_or; TYPE<WIDTH> NAME##_xor; TYPE<WIDTH> NAME##_not; \
    TYPE<WIDTH> NAME##_negated; TYPE<WIDTH> NAME##_left; TYPE<WIDTH> NAME##_right; TYPE<WIDTH> NAME##_far; \
    TYPE<WIDTH> NAME##_by; bit<8> NAME##_compared;

#define COMPUTE(NAME) \
    hdr.to.NAME##_sum = hdr.from.NAME##_a + hdr.from.NAME##_b; \
    hdr.to.NAME##_difference = hdr.from.NAME##_a - hdr.from.NAME##_b; \
    hdr.to.NAME##_product = hdr.from.NAME##_a * hdr.from.NAME##_b; \
    hdr.to.NAME##_saturated_sum = hdr.from.NAME##_a |+| hdr.from.NAME##_b; \
    hdr.to.NAME##_saturated_difference = hdr.from.NAME##_a |-| hdr.from.NAME##_b; \
    hdr.to.NAME##_and = hdr.from.NAME##_a & hdr.from.NAME##_b; \
    hdr.to.NAME##_or = hdr.from.NAME##_a | hdr.from.NAME##_b; \
    hdr.to.NAME##_xor = hdr.from.NAME##_a ^ hdr.from.NAME##_b; \
    hdr.to.NAME##_not = ~hdr.from.NAME##_a; \
    hdr.to.NAME##_negated = -hdr.from.NAME##_a; \
    hdr.to.NAME##_left = hdr.from.NAME##_a << 3; \
    hdr.to.NAME##_right = hdr.from.NAME##_a >> 3; \
    hdr.to.NAME##_far = hdr.from.NAME##_a >> 200; \
    hdr.to.NAME##_by = hdr.from.NAME##_a << hdr.from.by; \
    hdr.to.NAME##_compared = (bit<8>)((bit<1>)(hdr.from.NAME##_a < hdr.from.NAME##_b) \
        ++ (bit<1>)(hdr.from.NAME##_a <= hdr.from.NAME##_b) ++ (bit<1>)(hdr.from.NAME##_a == hdr.from.NAME##_b) \
        ++ (bit<1>)(hdr.from.NAME##_a >= hdr.from.NAME##_b) ++ (bit<1>)(hdr.from.NAME##_a > hdr.from.NAME##_b));

header From_h {
    bit<8> by;
    PAIR(u8, bit, 8)
    PAIR(s8, int, 8)
    PAIR(u33, bit, 33)
    PAIR(s33, int, 33)
    PAIR(u64, bit, 64)
    PAIR(s64, int, 64)
    PAIR(u130, bit, 130)
    PAIR(s130, int, 130)
    bit<4> pad;
}

header To_h {
    RESULTS(u8, bit, 8)
    RESULTS(s8, int, 8)
    RESULTS(u33, bit, 33)
    RESULTS(s33, int, 33)
    RESULTS(u64, bit, 64)
    RESULTS(s64, int, 64)
    RESULTS(u130, bit, 130)
    RESULTS(s130, int, 130)
    int<200> longer;
    bit<200> product;
    int<20> shorter;
    bit<34> joined;
    bit<4> slice;
    bit<2> quotient;
}

struct headers_t {
    From_h from;
    To_h to;
}

struct metadata_t {}

parser TestParser(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    state start {
        packet.extract(hdr.from);
        packet.extract(hdr.to);
        transition accept;
    }
}

control Verify(inout headers_t hdr, inout metadata_t meta) {
    apply {}
}

control ingress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    apply {
        standard.egress_spec = 1;
        COMPUTE(u8)
        COMPUTE(s8)
        COMPUTE(u33)
        COMPUTE(s33)
        COMPUTE(u64)
        COMPUTE(s64)
        COMPUTE(u130)
        COMPUTE(s130)
        hdr.to.longer = (int<200>)hdr.from.s130_a;
        hdr.to.product = (bit<200>)hdr.from.u130_a * (bit<200>)hdr.from.u64_b;
        hdr.to.shorter = (int<20>)hdr.from.s130_a;
        hdr.to.joined = hdr.from.u130_a[70:53] ++ hdr.from.u8_a ++ hdr.from.u8_b;
        hdr.to.slice = hdr.from.u130_b[66:63];
        hdr.to.slice[1:0] = hdr.from.u8_a[7:6];
        hdr.to.quotient = (bit<2>)(hdr.from.u33_a >> hdr.from.by);
    }
}

control egress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    apply {}
}

control Update(inout headers_t hdr, inout metadata_t meta) {
    apply {}
}

control TestDeparser(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr.from);
        packet.emit(hdr.to);
    }
}

V1Switch(TestParser(), Verify(), ingress(), egress(), Update(), TestDeparser()) main;
