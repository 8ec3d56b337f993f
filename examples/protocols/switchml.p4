// SwitchML (Sapio et al., NSDI 2021), algorithm 3: a pool of slots in two versions, a bitmap of workers in each, and exponents.
//
// A slot's version v may be used again when every worker has sent to version 1 - v: each has then received v's sum.

#include "hosts.p4"

const bit<16> PORT = 0x534d;
#define SLOTS 8192  // two versions of 4,096 slots

header switchml_h {
    bit<8> job;
    bit<8> worker;
    bit<8> version;
    bit<16> slot;
    bit<32> block;
    bit<8> exponent;  // of the worker's next block for this slot; in a result the largest of all workers
}
header word_h { word_t value; }
struct headers_t {
    ethernet_h ethernet;
    ipv4_h ipv4;
    udp_h udp;
    switchml_h switchml;
    word_h word0;
    word_h word1;
    word_h word2;
    word_h word3;
}
struct metadata_t {
    bit<16> group;
    bit<8> workers;
    bit<32> pool;   // the slot's index in this packet's version
    bit<1> first;   // of its sum
    bit<1> seen;    // a repetition
}

parser SwitchmlParser(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata) {
    HostParser() hosts;
    state start {
        hosts.apply(packet, hdr.ethernet, hdr.ipv4, hdr.udp);
        transition select(hdr.udp.isValid(), hdr.udp.dst_port) { (true, PORT): parse_switchml; default: accept; }
    }
    state parse_switchml {
        packet.extract(hdr.switchml);
        packet.extract(hdr.word0);
        packet.extract(hdr.word1);
        packet.extract(hdr.word2);
        packet.extract(hdr.word3);
        transition accept;
    }
}

// Lines "pool[ver, idx] <- p.vector", "pool[ver, idx] += p.vector" and "p.vector <- pool[ver, idx]".
control Vector(inout word_t value, in metadata_t meta) {
    register<word_t>(SLOTS) pool;
    apply {
        word_t sum;
        pool.read(sum, meta.pool);
        if (meta.seen == 0) {
            if (meta.first == 0) { value = ADD_LANES(sum, value); }
            pool.write(meta.pool, value);
        } else {
            value = sum;
        }
    }
}

control Exponent(inout bit<8> exponent, in metadata_t meta) {
    register<bit<8>>(SLOTS) pool;
    apply {
        bit<8> most;
        pool.read(most, meta.pool);
        if (meta.seen == 1 || (meta.first == 0 && most > exponent)) { exponent = most; }
        if (meta.seen == 0) { pool.write(meta.pool, exponent); }
    }
}

control ingress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata) {
    Forward() forward;
    register<bit<64>>(SLOTS) seen;
    register<bit<8>>(SLOTS) count;
    Exponent() exponent;
    Vector() vector0;
    Vector() vector1;
    Vector() vector2;
    Vector() vector3;
    counter(4, CounterType.packets) packets;  // added, completed, answered, dropped

    action drop() { mark_to_drop(standard_metadata); }
    action set_job(bit<16> group, bit<8> workers, bit<16> base, bit<16> mask) {
        meta.group = group;
        meta.workers = workers;
        meta.pool = 19w0 ++ hdr.switchml.version[0:0] ++ ((hdr.switchml.slot & mask) + base)[11:0];
    }
    table jobs {
        key = { hdr.switchml.job: exact; }
        actions = { set_job; @defaultonly drop; }
        const default_action = drop();
    }

    apply {
        if (!hdr.switchml.isValid()) {
            forward.apply(hdr.ethernet, hdr.ipv4, standard_metadata);
        } else if (jobs.apply().hit) {
            bit<64> own = 64w1 << hdr.switchml.worker;
            bit<64> these;
            bit<64> others;
            bit<8> present;
            seen.read(these, meta.pool);
            count.read(present, meta.pool);
            meta.seen = (bit<1>)(these & own != 0);
            meta.first = (bit<1>)(present == 0);
            if (meta.seen == 0) {
                seen.write(meta.pool, these | own);
                seen.read(others, meta.pool ^ (SLOTS / 2));
                seen.write(meta.pool ^ (SLOTS / 2), others & ~own);
                present = present + 1;
                if (present == meta.workers) { present = 0; }
                count.write(meta.pool, present);
            }
            exponent.apply(hdr.switchml.exponent, meta);
            vector0.apply(hdr.word0.value, meta);
            vector1.apply(hdr.word1.value, meta);
            vector2.apply(hdr.word2.value, meta);
            vector3.apply(hdr.word3.value, meta);
            packets.count(30w0 ++ meta.seen ++ (bit<1>)((present == 0) != (meta.seen == 1)));
            if (present != 0) { drop(); }
            else if (meta.seen == 0) { standard_metadata.mcast_grp = meta.group; }
            else { standard_metadata.egress_spec = standard_metadata.ingress_port; }
        }
    }
}

control egress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata) {
    Address() address;
    Prune() prune;
    apply {
        if (hdr.switchml.isValid()) { address.apply(hdr.ethernet, hdr.ipv4, hdr.udp, standard_metadata); }
        else { prune.apply(standard_metadata); }
    }
}

control Verify(inout headers_t hdr, inout metadata_t meta) { apply { } }
control Renew(inout headers_t hdr, inout metadata_t meta) { apply { IPV4_CHECKSUM(hdr.ipv4); } }
control Emit(packet_out packet, in headers_t hdr) { apply { packet.emit(hdr); } }

V1Switch(SwitchmlParser(), Verify(), ingress(), egress(), Renew(), Emit()) main;
