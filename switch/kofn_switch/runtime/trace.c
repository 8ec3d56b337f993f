// Writes the ways of packets as text: a traced program's calls, and the packet's fate in the runtime.
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bits.h"
#include "core.h"
#include "trace.h"

#define SHOWN_BYTES 64  // bytes of a packet
#define SHOWN_LIMBS 4   // most limbs of a number; of a longer number the first and the last limb

struct trace {
    struct services plain;  // the services without a trace
    const char *const *reasons;
    int file, active;
    uint32_t udp_port;  // only frames to this port; 0: every frame
    uint64_t left, number;
    char *text;
    size_t used, space;
};

static void put(struct core *core, const char *format, ...) __attribute__((format(printf, 2, 3)));

static int grow(struct trace *trace, size_t bytes) {
    if (trace->space - trace->used > bytes) return 1;
    size_t space = 2 * (trace->used + bytes) + 4096;
    char *text = realloc(trace->text, space);
    if (!text) return 0;
    trace->text = text;
    trace->space = space;
    return 1;
}

static void put(struct core *core, const char *format, ...) {
    struct trace *trace = core->trace;
    va_list arguments;
    if (!trace->active) return;
    va_start(arguments, format);
    int bytes = vsnprintf(NULL, 0, format, arguments);
    va_end(arguments);
    if (bytes < 0 || !grow(trace, (size_t)bytes)) return;
    va_start(arguments, format);
    trace->used += (size_t)vsnprintf(trace->text + trace->used, (size_t)bytes + 1, format, arguments);
    va_end(arguments);
}

static void put_text(struct core *core, const char *text) { put(core, "%s", text); }

static void put_value(struct core *core, const uint64_t *limbs, uint32_t count) {
    while (count > 1 && limbs[count - 1] == 0) count--;
    put(core, "0x%llx", (unsigned long long)limbs[count - 1]);
    for (uint32_t i = count - 1; i-- > 0;) {
        if (count > SHOWN_LIMBS && i + 2 == count) put(core, "...");
        if (count <= SHOWN_LIMBS || i == 0) put(core, "%016llx", (unsigned long long)limbs[i]);
    }
}

static void put_bytes(struct core *core, const uint8_t *bytes, uint32_t length) {
    for (uint32_t i = 0; i < length && i < SHOWN_BYTES; i++) put(core, "%s%02x", i % 16 ? "" : "\n  ", bytes[i]);
    if (length > SHOWN_BYTES) put(core, "...");
}

static void begin(struct core *core, uint32_t port, const uint8_t *packet, uint32_t length) {
    struct trace *trace = core->trace;
    if (trace->udp_port && !is_udp_to(packet, length, trace->udp_port)) return;
    trace->active = trace->left > 0;
    trace->number++;
    put(core, "packet %llu at port %u, %u bytes", (unsigned long long)trace->number, port, length);
    put_bytes(core, packet, length);
    trace->left -= trace->active ? 1 : 0;
}

// Write one packet's text at once, together with the text of packets that leave queues now. A failure ends the trace.
static void end(struct core *core) {
    struct trace *trace = core->trace;
    queues_serve(core);
    put(core, "\n\n");
    for (size_t done = 0; done < trace->used;) {
        ssize_t written = write(trace->file, trace->text + done, trace->used - done);
        if (written < 0 && errno == EINTR) continue;
        if (written <= 0) {
            trace->left = 0;
            break;
        }
        done += (size_t)written;
    }
    trace->used = 0;
    trace->active = 0;
}

static const struct tracer tracer = {begin, end, put_text, put_value};

static void traced_drop(struct core *core, enum drop_reason reason) {
    put(core, "\ndropped: %s", core->trace->reasons[reason]);
    core->trace->plain.drop(core, reason);
}

static void traced_emit(struct core *core, uint32_t port, const uint8_t *head, uint32_t head_bytes,
                        const uint8_t *tail, uint32_t tail_bytes, const uint8_t *payload, uint32_t payload_bytes) {
    uint64_t unknown = core->drops[DROP_UNKNOWN_PORT];
    put(core, "\nout of port %u, %u bytes", port, head_bytes + tail_bytes + payload_bytes);
    core->trace->plain.emit(core, port, head, head_bytes, tail, tail_bytes, payload, payload_bytes);
    if (core->drops[DROP_UNKNOWN_PORT] > unknown) put(core, "\ndropped: %s", core->trace->reasons[DROP_UNKNOWN_PORT]);
}

static const struct group *traced_group(struct core *core, uint32_t id) {
    const struct group *group = core->trace->plain.group(core, id);
    put(core, "\nmulticast group %u:", id);
    for (uint32_t i = 0; group && i < group->size; i++) put(core, " port %u", group->replicas[i].port);
    return group;
}

static const struct session *traced_session(struct core *core, uint32_t id) {
    const struct session *session = core->trace->plain.session(core, id);
    put(core, "\nclone session %u%s", id, session ? "" : ": unknown");
    return session;
}

static void traced_digest(struct core *core, uint32_t list, const uint64_t *limbs, uint32_t count) {
    put(core, "\ndigest of list %u:", list);
    for (uint32_t i = 0; i < count; i++) put(core, " 0x%llx", (unsigned long long)limbs[i]);
    core->trace->plain.digest(core, list, limbs, count);
}

// Write the ways of the next `packets` packets to a file descriptor; if `udp_port` is not 0, only of packets to this port.
// `reasons` has the names of the drops, and must stay valid. Return 0 or -ENOMEM.
int core_trace(struct core *core, int file, uint64_t packets, uint32_t udp_port, const char *const *reasons) {
    struct trace *trace = calloc(1, sizeof *trace);
    if (!trace) return -ENOMEM;
    *trace = (struct trace){.plain = core->services, .reasons = reasons, .file = file, .udp_port = udp_port, .left = packets};
    core->trace = trace;
    core->services.drop = traced_drop;
    core->services.emit = traced_emit;
    core->services.group = traced_group;
    core->services.session = traced_session;
    core->services.digest = traced_digest;
    core->services.tracer = &tracer;
    return 0;
}

void trace_free(struct core *core) {
    if (!core->trace) return;
    free(core->trace->text);
    free(core->trace);
    core->trace = NULL;
}
