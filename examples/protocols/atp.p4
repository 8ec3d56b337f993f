// ATP (Lao et al., NSDI 2021) with one switch: aggregators by hash, shared by all jobs, best effort.
//
// A packet that finds its aggregator taken by another block goes on to the parameter server, which completes the sum. The
// server's parameter packet frees the aggregator on its way to the workers.

#include "hosts.p4"

const bit<16> PORT = 0x4154;
const bit<16> SERVER_PORT = 0x4155;
#define AGGREGATORS 4096

const bit<8> RESEND = 1;
const bit<8> ECN = 2;
const bit<8> PARAMETER = 4;  // from the server

header atp_h {
    bit<8> job;
    bit<8> flags;
    bit<16> index;    // of the aggregator: the host's hash of job and sequence
    bit<32> sequence; // from 1
    bit<64> bitmap;   // the workers in the values
}
header word_h { word_t value; }
struct headers_t {
    ethernet_h ethernet;
    ipv4_h ipv4;
    udp_h udp;
    atp_h atp;
    word_h word0;
    word_h word1;
    word_h word2;
    word_h word3;
}
struct metadata_t {
    bit<16> group;
    bit<64> everyone;
    bit<9> server;
    bit<32> index;
    bit<1> add;    // the values are added to the aggregator's
    bit<1> store;  // and kept there
    bit<1> fetch;  // or replaced by them
}

parser AtpParser(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata) {
    HostParser() hosts;
    state start {
        hosts.apply(packet, hdr.ethernet, hdr.ipv4, hdr.udp);
        transition select(hdr.udp.isValid(), hdr.udp.dst_port) {
            (true, PORT): parse_atp;
            (true, SERVER_PORT): parse_atp;
            default: accept;
        }
    }
    state parse_atp {
        packet.extract(hdr.atp);
        packet.extract(hdr.word0);
        packet.extract(hdr.word1);
        packet.extract(hdr.word2);
        packet.extract(hdr.word3);
        transition accept;
    }
}

control Values(inout word_t value, in metadata_t meta) {
    register<word_t>(AGGREGATORS) values;
    apply {
        word_t sum;
        values.read(sum, meta.index);
        if (meta.add == 1) { value = ADD_LANES(sum, value); }
        if (meta.fetch == 1) { value = sum; }
        if (meta.store == 1) { values.write(meta.index, value); }
    }
}

control ingress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata) {
    Forward() forward;
    register<bit<40>>(AGGREGATORS) owners;  // job and sequence, 0: free
    register<bit<64>>(AGGREGATORS) bitmaps;
    register<bit<8>>(AGGREGATORS) ecns;
    Values() values0;
    Values() values1;
    Values() values2;
    Values() values3;
    counter(6, CounterType.packets) packets;  // allocated, added, completed, passed, given up, parameters

    action drop() { mark_to_drop(standard_metadata); }
    action to_server() {
        hdr.udp.dst_port = SERVER_PORT;
        standard_metadata.egress_spec = meta.server;
    }
    action set_job(bit<16> group, bit<64> everyone, bit<9> server) {
        meta.group = group;
        meta.everyone = everyone;
        meta.server = server;
    }
    table jobs {
        key = { hdr.atp.job: exact; }
        actions = { set_job; @defaultonly drop; }
        const default_action = drop();
    }

    apply {
        if (!hdr.atp.isValid()) {
            forward.apply(hdr.ethernet, hdr.ipv4, standard_metadata);
        } else if (jobs.apply().hit) {
            bit<40> own = hdr.atp.job ++ hdr.atp.sequence;
            bit<40> owner;
            bit<64> present;
            bit<8> ecn;
            meta.index = 20w0 ++ hdr.atp.index[11:0];
            owners.read(owner, meta.index);
            bitmaps.read(present, meta.index);
            ecns.read(ecn, meta.index);
            if (hdr.ipv4.ecn == 3) { hdr.atp.flags = hdr.atp.flags | ECN; }
            if (hdr.atp.flags & PARAMETER != 0) {
                if (owner == own) { owners.write(meta.index, 0); }
                hdr.udp.dst_port = PORT;
                standard_metadata.mcast_grp = meta.group;
                packets.count(5);
            } else if (owner == own) {
                meta.add = (bit<1>)(present & hdr.atp.bitmap == 0);
                meta.fetch = ~meta.add;
                hdr.atp.bitmap = present | hdr.atp.bitmap;
                hdr.atp.flags = hdr.atp.flags | (ecn & ECN);
                if (hdr.atp.flags & RESEND != 0) {
                    owners.write(meta.index, 0);  // given up: what is there goes on
                    to_server();
                    packets.count(4);
                } else {
                    meta.store = meta.add;
                    if (meta.add == 1 && hdr.atp.bitmap == meta.everyone) { to_server(); packets.count(2); }
                    else { drop(); packets.count(1); }
                    bitmaps.write(meta.index, hdr.atp.bitmap);
                    ecns.write(meta.index, hdr.atp.flags);
                }
            } else if (owner == 0 && hdr.atp.flags & RESEND == 0) {
                meta.store = 1;
                owners.write(meta.index, own);
                bitmaps.write(meta.index, hdr.atp.bitmap);
                ecns.write(meta.index, hdr.atp.flags);
                if (hdr.atp.bitmap == meta.everyone) { to_server(); } else { drop(); }
                packets.count(0);
            } else {
                to_server();
                packets.count(3);
            }
            values0.apply(hdr.word0.value, meta);
            values1.apply(hdr.word1.value, meta);
            values2.apply(hdr.word2.value, meta);
            values3.apply(hdr.word3.value, meta);
        }
    }
}

control egress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata) {
    Address() address;
    Prune() prune;
    apply {
        if (hdr.atp.isValid()) { address.apply(hdr.ethernet, hdr.ipv4, hdr.udp, standard_metadata); }
        else { prune.apply(standard_metadata); }
    }
}

control Verify(inout headers_t hdr, inout metadata_t meta) { apply { } }
control Renew(inout headers_t hdr, inout metadata_t meta) { apply { IPV4_CHECKSUM(hdr.ipv4); } }
control Emit(packet_out packet, in headers_t hdr) { apply { packet.emit(hdr); } }

V1Switch(AtpParser(), Verify(), ingress(), egress(), Renew(), Emit()) main;
