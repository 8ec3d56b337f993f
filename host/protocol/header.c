#include "header.h"

#include <string.h>

#define AT(field) (KOFN_AT_##field - KOFN_FRAME_BYTES)

static uint16_t get16(const uint8_t *wire) {
    uint16_t value;
    memcpy(&value, wire, sizeof value);
    return __builtin_bswap16(value);
}

static uint32_t get32(const uint8_t *wire) {
    uint32_t value;
    memcpy(&value, wire, sizeof value);
    return __builtin_bswap32(value);
}

static uint64_t get64(const uint8_t *wire) {
    uint64_t value;
    memcpy(&value, wire, sizeof value);
    return __builtin_bswap64(value);
}

static void put16(uint8_t *wire, uint16_t value) {
    value = __builtin_bswap16(value);
    memcpy(wire, &value, sizeof value);
}

static void put32(uint8_t *wire, uint32_t value) {
    value = __builtin_bswap32(value);
    memcpy(wire, &value, sizeof value);
}

static void put64(uint8_t *wire, uint64_t value) {
    value = __builtin_bswap64(value);
    memcpy(wire, &value, sizeof value);
}

struct header header_read(const uint8_t *wire) {
    struct header header = {
        .version = wire[AT(VERSION)] >> 4,
        .kind = wire[AT(KIND)] & 15,
        .job = wire[AT(JOB)],
        .worker = wire[AT(WORKER)],
        .recipient = wire[AT(RECIPIENT)],
        .lanes = wire[AT(LANES)] >> 4,
        .flags = wire[AT(FLAGS)] & 15,
        .words = wire[AT(WORDS)],
        .k = get16(wire + AT(K)),
        .generation = get32(wire + AT(GENERATION)),
        .iteration = get32(wire + AT(ITERATION)),
        .block = get32(wire + AT(BLOCK)),
        .slot = get16(wire + AT(SLOT)),
        .checksum = get16(wire + AT(CHECKSUM)),
        .scale = (int16_t)get16(wire + AT(SCALE)),
        .count = wire[AT(COUNT)],
        .part = wire[AT(PART)],
        .weight = get32(wire + AT(WEIGHT)),
    };
    for (int part = 0; part < KOFN_PARTS; part++)
        header.members[part] = get64(wire + AT(MEMBERS) + 8 * (KOFN_PARTS - 1 - part));
    return header;
}

void header_write(const struct header *header, uint8_t *wire) {
    wire[AT(VERSION)] = (uint8_t)(header->version << 4 | header->kind);
    wire[AT(JOB)] = header->job;
    wire[AT(WORKER)] = header->worker;
    wire[AT(RECIPIENT)] = header->recipient;
    wire[AT(LANES)] = (uint8_t)(header->lanes << 4 | header->flags);
    wire[AT(WORDS)] = header->words;
    put16(wire + AT(K), header->k);
    put32(wire + AT(GENERATION), header->generation);
    put32(wire + AT(ITERATION), header->iteration);
    put32(wire + AT(BLOCK), header->block);
    put16(wire + AT(SLOT), header->slot);
    put16(wire + AT(CHECKSUM), header->checksum);
    put16(wire + AT(SCALE), (uint16_t)header->scale);
    wire[AT(COUNT)] = header->count;
    wire[AT(PART)] = header->part;
    put32(wire + AT(WEIGHT), header->weight);
    for (int part = 0; part < KOFN_PARTS; part++)
        put64(wire + AT(MEMBERS) + 8 * (KOFN_PARTS - 1 - part), header->members[part]);
}
