// Clones, resubmitted and recirculated packets. A program that makes them includes this file after its deparser.
//
// A clone of ingress goes through egress before its original, with a separate state. Clones of egress and packets to be parsed
// again wait until the packet itself is done; clones are processed first, and each kind in order of arrival. A clone, and a
// packet that is parsed again, keeps the metadata of its field list; all other metadata is zero. targets/simple_switch of
// behavioral-model defines these rules.
#ifndef KOFN_COPIES_H
#define KOFN_COPIES_H

#define WAITING 1024  // most waiting clones, and most waiting packets to be parsed again
#define PASSES 4096   // most passes of all packets that come from one received packet

enum instance_type { INGRESS_CLONE = 1, EGRESS_CLONE = 2, RECIRCULATED = 4, RESUBMITTED = 6 };

// Functions of the program, defined before and after this file.
static void arrive(struct state *D, uint32_t port);                             // a packet was received
static void anew(struct state *D, const uint8_t *packet, uint32_t length);      // all zero, before the parser
static void enter(struct state *D);                                             // at D->port
static void keep(struct state *C, const struct state *D, uint32_t list, enum instance_type type);  // metadata alone
static void take_over(struct state *D, const struct state *from);               // the metadata
static void way(struct state *D);                                               // from the parser to the queues
static void replicate(struct state *D, const struct group *group);              // from the queues on

struct held {
    const struct session *session;  // of a clone
    uint32_t length;                // of a packet to be parsed again
    struct state state;             // of a packet to be parsed again only the metadata
    uint8_t bytes[PACKET_MAX + HEAD_BYTES + TAIL_BYTES];
};

struct waiting {
    uint32_t first, count;
    struct held held[WAITING];
};

struct whole {
    struct state now, clone;
    struct waiting clones, again;
};

static struct whole *whole(struct state *D) { return D->in->state; }

static struct held *hold(struct state *D, struct waiting *queue) {
    if (queue->count < WAITING) return &queue->held[(queue->first + queue->count++) % WAITING];
    services(D->core)->drop(D->core, DROP_COPY_QUEUE_FULL);
    return NULL;
}

static void release(struct waiting *queue) { queue->first = --queue->count ? (queue->first + 1) % WAITING : 0; }

// Return the destination of the requested clone, NULL if there is no such session.
static const struct session *take_session(struct state *D) {
    const uint32_t clone = D->clone;
    D->clone = 0;
    return services(D->core)->session(D->core, clone & SESSION_MAX);
}

static void send_clone(struct state *D, const struct session *session) {
    if (session->length) D->truncate = session->length;
    replicate(D, session->targets);
}

// Clone the packet as it arrived: parse it again, with no metadata but its port.
static void clone_ingress(struct state *D) {
    const struct session *session = take_session(D);
    struct state *C = &whole(D)->clone;
    if (!session) return;
    C->core = D->core; C->in = D->in; C->port = D->port; C->held = D->held;
    anew(C, D->packet, D->length);
    enter(C);
    (void)parse(C);
    keep(C, D, D->clone_list, INGRESS_CLONE);
    send_clone(C, session);
}

// Clone the packet as it is now.
static void clone_egress(struct state *D) {
    const struct session *session = take_session(D);
    struct held *held = session ? hold(D, &whole(D)->clones) : NULL;
    if (!held) return;
    struct state *C = &held->state;
    held->session = session;
    *C = *D;
    keep(C, D, D->clone_list, EGRESS_CLONE);
    memcpy(held->bytes + D->at, D->packet + D->at, D->length - D->at);
    C->packet = held->bytes; C->held = 1; C->truncate = UINT32_MAX; C->tail = NULL;
    memset(C->summed, 0, sizeof C->summed);
}

static void resubmit(struct state *D) {
    struct held *held = hold(D, &whole(D)->again);
    if (!held) return;
    memcpy(held->bytes, D->packet, D->length);
    held->length = D->length;
    keep(&held->state, D, D->resubmit, RESUBMITTED);
}

static void recirculate(struct state *D) {
    const uint32_t rest = D->length - D->at;
    struct held *held = hold(D, &whole(D)->again);
    if (!held) return;
    uint32_t length = deparse_head(D, held->bytes);
    length += deparse_tail(D, held->bytes + length);
    if (length + rest > PACKET_MAX) {
        whole(D)->again.count--;
        services(D->core)->drop(D->core, DROP_RECEIVED_TOO_LONG);
        return;
    }
    memcpy(held->bytes + length, D->packet + D->at, rest);
    held->length = length + rest;
    keep(&held->state, D, D->recirculate, RECIRCULATED);
}

// Send a held packet. Its payload may be freed before the packet is sent, so the payload is copied.
static void emit_held(struct state *D, uint32_t port, uint8_t *head, uint32_t bytes) {
    const uint32_t rest = D->length - D->at;
    bytes += deparse_tail(D, head + bytes);
    memcpy(head + bytes, D->packet + D->at, rest);
    bytes = D->truncate < bytes + rest ? D->truncate : bytes + rest;
    services(D->core)->emit(D->core, port, head, bytes, head, 0, head, 0);
}

static int next_clone(struct waiting *queue) {
    if (!queue->count) return 0;
    struct held *held = &queue->held[queue->first];
    send_clone(&held->state, held->session);
    release(queue);
    return 1;
}

static int next_again(struct state *D, struct waiting *queue) {
    if (!queue->count) return 0;
    struct held *held = &queue->held[queue->first];
    D->held = 1;
    anew(D, held->bytes, held->length);
    take_over(D, &held->state);
    way(D);
    release(queue);
    return 1;
}

static void give_up(struct core *core, struct waiting *queue) {
    for (; queue->count; queue->count--) services(core)->drop(core, DROP_TOO_MANY_PASSES);
    queue->first = 0;
}

// Process the clones and repeated packets that the packet left.
static void go_on(struct whole *all) {
    for (uint32_t passes = 1; next_clone(&all->clones) || next_again(&all->now, &all->again); passes++) {
        if (passes < PASSES) continue;
        give_up(all->now.core, &all->clones);
        give_up(all->now.core, &all->again);
    }
}

static void process(struct core *core, struct instance *in, uint32_t port, const uint8_t *packet, uint32_t length) {
    struct whole *all = in->state;
    struct state *D = &all->now;
    D->core = core; D->in = in; D->packet = packet; D->length = length; D->size = length; D->port = port; D->held = 0;
    arrive(D, port);
    way(D);
    go_on(all);
}

#endif
