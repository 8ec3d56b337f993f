// Reads of invalid headers: the fields' last values, if the packet itself has set them.

#include <core.p4>
#include <v1model.p4>

header Test_h {
    bit<8> number;  // which of the cases below
    bit<8> i;       // an element
    bit<16> read;
    bit<16> again;
    bit<8> found;
}

header Data_h {
    bit<16> value;
    bit<8> rest;
}

header Other_h {
    bit<80> wide;
}

header_union Either {
    Data_h data;
    Other_h other;
}

struct headers_t {
    Test_h test;
    Data_h data;
    Data_h absent;  // never extracted
    Data_h[3] row;
    Either either;
}

struct metadata_t {}

parser TestParser(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    state start {
        packet.extract(hdr.test);
        packet.extract(hdr.data);
        packet.extract(hdr.either.data);
        packet.extract(hdr.row.next);
        packet.extract(hdr.row.next);
        transition accept;
    }
}

control Verify(inout headers_t hdr, inout metadata_t meta) {
    apply {}
}

control ingress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    action found() { hdr.test.found = 1; }
    table by_value {
        key = { hdr.data.value: exact; hdr.data.isValid(): exact; }
        actions = { found; NoAction; }
        const entries = { (0, false): found(); }  // keys have zeros in the place of invalid headers
    }

    apply {
        Data_h local;
        bit<2> i = hdr.test.i[1:0];
        standard.egress_spec = 1;
        if (hdr.test.number == 1) {
            hdr.data.setInvalid();
            hdr.test.read = hdr.data.value;
            by_value.apply();
            hdr.data.setValid();
            hdr.test.again = hdr.data.value;
        } else if (hdr.test.number == 2) {
            hdr.data = hdr.absent;  // takes it away, as it is
            hdr.test.read = hdr.data.value;
            hdr.data.value = 0x4444;
            hdr.test.again = hdr.data.value;
        } else if (hdr.test.number == 3) {
            local.value = hdr.data.value + 1;
            hdr.test.read = local.value;
            hdr.absent.value = 0x5555;
            hdr.test.again = hdr.absent.value;
        } else if (hdr.test.number == 4) {
            hdr.row.pop_front(1);
            hdr.test.read = hdr.row[2].value;
            hdr.test.again = hdr.row[i].value;
        } else if (hdr.test.number == 5) {
            hdr.row.push_front(2);
            hdr.test.read = hdr.row[1].value;
            hdr.test.again = hdr.row[i].value;
        } else if (hdr.test.number == 6) {
            hdr.either.other.setValid();
            hdr.test.read = hdr.either.data.value;
            hdr.either.other.wide[15:0] = hdr.data.value;
            hdr.either.other.setInvalid();
            hdr.test.again = hdr.either.other.wide[15:0];
        }
    }
}

control egress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    apply {
        if (hdr.test.number == 7) {
            hdr.data.setInvalid();
            hdr.test.read = hdr.data.value;
        }
    }
}

control Update(inout headers_t hdr, inout metadata_t meta) {
    apply {}
}

control TestDeparser(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr.test);
        packet.emit(hdr.data);
        packet.emit(hdr.absent);
        packet.emit(hdr.either);
        packet.emit(hdr.row);
    }
}

V1Switch(TestParser(), Verify(), ingress(), egress(), Update(), TestDeparser()) main;
