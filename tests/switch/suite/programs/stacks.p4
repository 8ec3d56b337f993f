// Header stacks: next, last, lastIndex, fixed and computed elements, push and pop, more headers than there is room for.

#include <core.p4>
#include <v1model.p4>

header Test_h {
    bit<8> number;   // which of the cases below
    bit<8> i;        // two elements
    bit<8> j;
    bit<8> failure;  // the parser's error
    bit<8> last;     // index of the last element extracted
    bit<8> result;
}

header Label_h {
    bit<1> more;
    bit<7> skip;     // bytes to the next label
    bit<16> value;
    bit<3> low;
    bit<5> high;
}

struct headers_t {
    Test_h test;
    Label_h[4] labels;
    Label_h[4] copy;
}

struct metadata_t {
    bit<8> last;
}

parser Labels(packet_in packet, inout headers_t hdr, inout metadata_t meta) {
    state start {
        packet.extract(hdr.labels.next);
        meta.last = (bit<8>)hdr.labels.lastIndex;
        verify(hdr.labels.last.value != 0xbad, error.NoMatch);
        packet.advance((bit<32>)hdr.labels.last.skip * 8);
        transition select(hdr.labels.last.more) {
            1: start;
            default: accept;
        }
    }
}

parser TestParser(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    Labels() labels;
    Labels() more_labels;

    state start {
        packet.extract(hdr.test);
        transition select(hdr.test.number) {
            0: accept;
            2: twice;
            3: third;
            18: none_yet;
            default: once;
        }
    }
    state once {
        labels.apply(packet, hdr, meta);
        transition accept;
    }
    state twice {
        labels.apply(packet, hdr, meta);
        more_labels.apply(packet, hdr, meta);
        transition accept;
    }
    state none_yet {  // then the last index is the largest number that there is
        verify(hdr.labels.lastIndex > 4, error.NoMatch);
        meta.last = (bit<8>)hdr.labels.lastIndex;
        transition accept;
    }
    state third {  // an element by its number: the next one to extract stays the first
        packet.extract(hdr.labels[2]);
        transition once;
    }
}

control Verify(inout headers_t hdr, inout metadata_t meta) {
    apply {}
}

control ingress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    action count_up() {  // jumps in p4c's output
        for (bit<8> k = 0; k < hdr.test.i; k = k + 1) {
            if (k == 2) { continue; }
            if (k > hdr.test.j) { break; }
            hdr.test.result = hdr.test.result + 1;
            hdr.labels[k[1:0]].value = (bit<16>)k;
        }
    }

    apply {
        bit<2> i = hdr.test.i[1:0];
        bit<2> j = hdr.test.j[1:0];
        standard.egress_spec = 1;
        if (standard.parser_error == error.PacketTooShort) { hdr.test.failure = 1; }
        else if (standard.parser_error == error.StackOutOfBounds) { hdr.test.failure = 2; }
        else if (standard.parser_error == error.NoMatch) { hdr.test.failure = 3; }
        hdr.test.last = meta.last;

        if (hdr.test.number == 4) {
            hdr.labels[i].value = hdr.labels[j].value + 1;
        } else if (hdr.test.number == 5) {
            hdr.labels[i].value[7:0] = hdr.labels[j].value[15:8];
            hdr.labels[i].low = hdr.labels[i].low |+| 5;
            hdr.labels[j].high = hdr.labels[j].high |-| 7;
        } else if (hdr.test.number == 6) {
            hdr.labels[hdr.labels[j].low[1:0]].high = 0x1f;
        } else if (hdr.test.number == 7) {
            hdr.labels.push_front(1);
            hdr.labels[0].setValid();
            hdr.labels[0].value = 0xaaaa;
        } else if (hdr.test.number == 8) {
            hdr.labels.push_front(3);
        } else if (hdr.test.number == 9) {
            hdr.labels.push_front(5);
        } else if (hdr.test.number == 10) {
            hdr.labels.pop_front(1);
        } else if (hdr.test.number == 11) {
            hdr.labels.pop_front(4);
        } else if (hdr.test.number == 12) {
            hdr.copy = hdr.labels;
            hdr.copy.pop_front(1);
            hdr.copy.push_front(2);
            hdr.copy[1] = hdr.labels[0];
        } else if (hdr.test.number == 13) {
            hdr.labels[0].setInvalid();
            hdr.labels[3].setValid();
            hdr.labels[3] = { 0, 1, 2, 3, 4 };
        } else if (hdr.test.number == 14) {
            hdr.test.result = hdr.labels[0] == hdr.labels[1] ? 8w1 : 8w2;
        } else if (hdr.test.number == 15) {
            hdr.copy = hdr.labels;
            hdr.test.result = hdr.copy == hdr.labels ? 8w1 : 8w2;
        } else if (hdr.test.number == 16) {
            count_up();
        }
    }
}

control egress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    apply {
        if (hdr.test.number == 17) {
            hdr.labels.push_front(1);
            hdr.labels[0].setValid();
            hdr.labels[0].value = 0xbbbb;
        }
    }
}

control Update(inout headers_t hdr, inout metadata_t meta) {
    apply {}
}

control TestDeparser(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr.test);
        packet.emit(hdr.labels);
        packet.emit(hdr.copy);
    }
}

V1Switch(TestParser(), Verify(), ingress(), egress(), Update(), TestDeparser()) main;
