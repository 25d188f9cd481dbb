/* See nat.h. A flow is one mapping: an inside address and port, an outside port, and the remote
 * address and port that was called. */
#include "nat.h"

#include <stdlib.h>
#include <string.h>

enum { BUCKETS = 1 << 12, TCP = 6, UDP = 17, SYN = 2, RST = 4, ACK = 16, PMP_PORT = 5351 };

typedef struct flow {
    struct flow *next_in, *next_out;
    uint32_t inside, remote; /* remote 0: mapped by NAT-PMP, so anybody may send to it */
    uint16_t inside_port, remote_port, outside_port;
    uint8_t protocol, closed;
    int64_t used_ns;
} flow;

struct nat {
    char kind[32];
    uint32_t outside;
    int translates, for_each_remote, keeps_port, anybody_answers, resets, sequential;
    int64_t ttl_ns;
    uint16_t next_port;
    uint64_t random;
    flow *by_inside[BUCKETS], *by_outside[BUCKETS];
};

/* Packets ------------------------------------------------------------------------------------- */

static uint16_t get16(const unsigned char *at)
{
    return (uint16_t)(at[0] << 8 | at[1]);
}

static uint32_t get32(const unsigned char *at)
{
    return (uint32_t)get16(at) << 16 | get16(at + 2);
}

static void put16(unsigned char *at, uint32_t value)
{
    at[0] = (unsigned char)(value >> 8);
    at[1] = (unsigned char)value;
}

static void put32(unsigned char *at, uint32_t value)
{
    put16(at, value >> 16);
    put16(at + 2, value);
}

typedef struct {
    uint8_t protocol;
    uint32_t source, target;
    uint16_t source_port, target_port;
    unsigned char *transport; /* the TCP or UDP header */
    int transport_length;
} view;

/* Return whether the packet is TCP or UDP with a complete header. Only first fragments have ports. */
static int look(unsigned char *packet, int length, view *seen)
{
    int header = (packet[0] & 15) * 4;
    if (length < header + 8 || (get16(packet + 6) & 0x1fff))
        return 0;
    *seen = (view){
        .protocol = packet[9],
        .source = get32(packet + 12),
        .target = get32(packet + 16),
        .source_port = get16(packet + header),
        .target_port = get16(packet + header + 2),
        .transport = packet + header,
        .transport_length = length - header,
    };
    return seen->protocol == UDP || (seen->protocol == TCP && seen->transport_length >= 20);
}

static unsigned char *transport_sum(const view *seen)
{
    return seen->transport + (seen->protocol == TCP ? 16 : 6);
}

/* Change a checksum as one 32-bit value of the packet changes (RFC 1624). */
static void adjust(unsigned char *sum, uint32_t before, uint32_t after)
{
    uint32_t total = (uint16_t)~get16(sum);
    total += (uint16_t)~(before >> 16);
    total += (uint16_t)~before;
    total += after >> 16;
    total += after & 0xffff;
    while (total >> 16)
        total = (total & 0xffff) + (total >> 16);
    put16(sum, (uint16_t)~total);
}

/* Replace the source (or the target) address and port. A UDP checksum of 0 means that there is none. */
static void rewrite(unsigned char *packet, view *seen, int source, uint32_t address, uint16_t port)
{
    unsigned char *address_at = packet + (source ? 12 : 16);
    unsigned char *port_at = seen->transport + (source ? 0 : 2);
    unsigned char *sum = transport_sum(seen);
    adjust(packet + 10, get32(address_at), address);
    if (seen->protocol == TCP || get16(sum)) {
        adjust(sum, get32(address_at), address);
        adjust(sum, get16(port_at), port);
    }
    put32(address_at, address);
    put16(port_at, port);
}

static uint16_t checksum(const unsigned char *bytes, int length, uint32_t total)
{
    for (int i = 0; i + 1 < length; i += 2)
        total += get16(bytes + i);
    if (length & 1)
        total += (uint32_t)bytes[length - 1] << 8;
    while (total >> 16)
        total = (total & 0xffff) + (total >> 16);
    return (uint16_t)~total;
}

/* Make the IP header and the checksums of an answer whose transport header and data, `length` bytes,
 * the caller has already written at packet + 20. Return the length of the packet. */
static int answer(unsigned char *packet, const view *asked, int length)
{
    unsigned char *sum = packet + 20 + (asked->protocol == TCP ? 16 : 6);
    uint32_t pseudo = (uint32_t)asked->protocol + (uint32_t)length;
    memset(packet, 0, 20);
    packet[0] = 0x45;
    put16(packet + 2, 20 + (uint32_t)length);
    packet[6] = 0x40;
    packet[8] = 64;
    packet[9] = asked->protocol;
    put32(packet + 12, asked->target);
    put32(packet + 16, asked->source);
    put16(packet + 10, checksum(packet, 20, 0));
    pseudo += (asked->source >> 16) + (asked->source & 0xffff);
    pseudo += (asked->target >> 16) + (asked->target & 0xffff);
    put16(sum, 0);
    put16(sum, checksum(packet + 20, length, pseudo));
    return 20 + length;
}

static int reset(unsigned char *packet, const view *asked)
{
    unsigned char out[20] = {0};
    put16(out, asked->target_port);
    put16(out + 2, asked->source_port);
    put32(out + 8, get32(asked->transport + 4) + 1);
    out[12] = 5 << 4;
    out[13] = RST | ACK;
    memcpy(packet + 20, out, sizeof out);
    return answer(packet, asked, sizeof out);
}

/* Flows --------------------------------------------------------------------------------------- */

static unsigned bucket(uint8_t protocol, uint32_t address, uint16_t port)
{
    return (address * 2654435761u ^ port * 40503u ^ protocol) % BUCKETS;
}

static int alive(const nat *self, const flow *each, int64_t now_ns)
{
    return !each->remote || now_ns - each->used_ns < self->ttl_ns;
}

static int outside_taken(const nat *self, uint8_t protocol, uint16_t port, int64_t now_ns)
{
    const flow *each = self->by_outside[bucket(protocol, 0, port)];
    for (; each; each = each->next_out)
        if (each->protocol == protocol && each->outside_port == port && alive(self, each, now_ns))
            return 1;
    return 0;
}

static uint16_t drawn_port(nat *self)
{
    if (self->sequential)
        return ++self->next_port;
    self->random ^= self->random << 13;
    self->random ^= self->random >> 7;
    self->random ^= self->random << 17;
    return (uint16_t)(self->random >> 20);
}

/* Return a free outside port, `wish` if possible; 0 if there is none. */
static uint16_t free_port(nat *self, uint8_t protocol, uint16_t wish, int64_t now_ns)
{
    if (wish && !outside_taken(self, protocol, wish, now_ns))
        return wish;
    for (int tries = 0; tries < 100000; tries++) {
        uint16_t port = drawn_port(self);
        if (port >= 1024 && !outside_taken(self, protocol, port, now_ns))
            return port;
    }
    return 0;
}

static flow *add(nat *self, flow given)
{
    flow *made = malloc(sizeof *made);
    flow **inside = &self->by_inside[bucket(given.protocol, given.inside, given.inside_port)];
    flow **outside = &self->by_outside[bucket(given.protocol, 0, given.outside_port)];
    if (!made)
        abort();
    *made = given;
    made->next_in = *inside;
    *inside = made;
    made->next_out = *outside;
    *outside = made;
    return made;
}

static void unlink_outside(nat *self, const flow *gone)
{
    flow **at = &self->by_outside[bucket(gone->protocol, 0, gone->outside_port)];
    while (*at && *at != gone)
        at = &(*at)->next_out;
    if (*at)
        *at = gone->next_out;
}

/* Return the flow of a packet that leaves the site. Make it if there is none; NULL if no port is free. */
static flow *outward(nat *self, const view *seen, int64_t now_ns)
{
    flow **at = &self->by_inside[bucket(seen->protocol, seen->source, seen->source_port)];
    uint16_t shared = 0, port = seen->source_port;
    while (*at) {
        flow *each = *at;
        if (!alive(self, each, now_ns)) {
            unlink_outside(self, each);
            *at = each->next_in;
            free(each);
            continue;
        }
        if (each->protocol == seen->protocol && each->inside == seen->source
            && each->inside_port == seen->source_port) {
            if (each->remote == seen->target && each->remote_port == seen->target_port)
                return each;
            if (!self->for_each_remote || !each->remote)
                shared = each->outside_port;
        }
        at = &each->next_in;
    }
    if (self->translates)
        port = shared ? shared
                      : free_port(self, seen->protocol, self->keeps_port ? port : 0, now_ns);
    if (!port)
        return NULL;
    return add(self, (flow){
        .inside = seen->source,
        .inside_port = seen->source_port,
        .remote = seen->target,
        .remote_port = seen->target_port,
        .outside_port = port,
        .protocol = seen->protocol,
        .used_ns = now_ns,
    });
}

/* Return the flow of a packet from outside; NULL if the packet is uninvited. */
static flow *inward(nat *self, const view *seen, int64_t now_ns)
{
    flow *each = self->by_outside[bucket(seen->protocol, 0, seen->target_port)];
    for (; each; each = each->next_out) {
        if (each->protocol != seen->protocol || each->outside_port != seen->target_port)
            continue;
        if (each->closed || !alive(self, each, now_ns))
            continue;
        if (!self->translates && each->inside != seen->target)
            continue;
        if (!each->remote || self->anybody_answers)
            return each;
        if (each->remote == seen->source && each->remote_port == seen->source_port)
            return each;
    }
    return NULL;
}

static int is_reset(const view *seen)
{
    return seen->protocol == TCP && (seen->transport[13] & RST);
}

/* The interface ------------------------------------------------------------------------------- */

int nat_has(const nat *self, const char *modifier)
{
    return strstr(self->kind, modifier) != NULL;
}

int nat_translates(const nat *self)
{
    return self->translates;
}

static int base_is(const char *kind, const char *base)
{
    size_t length = strcspn(kind, "/");
    return strlen(base) == length && !strncmp(kind, base, length);
}

nat *nat_new(const char *kind, uint32_t outside)
{
    int full = base_is(kind, "full"), symmetric = base_is(kind, "sym"), wall = base_is(kind, "fw");
    const char *ttl = strstr(kind, "/ttl=");
    nat *self;
    if (strlen(kind) >= sizeof self->kind || !(full || symmetric || wall || base_is(kind, "cone")))
        return NULL;
    self = calloc(1, sizeof *self);
    if (!self)
        abort();
    strcpy(self->kind, kind);
    self->outside = outside;
    self->translates = !wall;
    self->for_each_remote = symmetric;
    self->anybody_answers = full;
    self->keeps_port = !symmetric && !nat_has(self, "/rand");
    self->resets = nat_has(self, "/rst");
    self->sequential = nat_has(self, "/seq");
    self->ttl_ns = (int64_t)((ttl ? atof(ttl + 5) : 120) * 1e9);
    self->next_port = 20000;
    self->random = 88172645463325252ULL ^ outside * 2654435761ULL;
    return self;
}

void nat_free(nat *self)
{
    for (int i = 0; i < BUCKETS; i++)
        for (flow *each = self->by_inside[i], *next; each; each = next) {
            next = each->next_in;
            free(each);
        }
    free(self);
}

int nat_out(nat *self, unsigned char *packet, int length, int64_t now_ns)
{
    view seen;
    flow *of;
    if (!look(packet, length, &seen) || !(of = outward(self, &seen, now_ns)))
        return NAT_DROP;
    of->used_ns = now_ns;
    of->closed = is_reset(&seen);
    if (self->translates)
        rewrite(packet, &seen, 1, self->outside, of->outside_port);
    return NAT_PASS;
}

int nat_in(nat *self, unsigned char *packet, int *length, int64_t now_ns)
{
    view seen;
    flow *of;
    if (!look(packet, *length, &seen))
        return NAT_DROP;
    of = inward(self, &seen, now_ns);
    if (!of) {
        int call = seen.protocol == TCP && (seen.transport[13] & (SYN | ACK)) == SYN;
        if (!self->resets || !call)
            return NAT_DROP;
        *length = reset(packet, &seen);
        return NAT_BACK;
    }
    of->used_ns = now_ns;
    if (is_reset(&seen) && of->remote)
        of->closed = 1; /* As in Linux, a reset closes the flow until a node calls again. */
    if (self->translates)
        rewrite(packet, &seen, 0, of->inside, of->inside_port);
    return NAT_PASS;
}

/* NAT-PMP (RFC 6886) -------------------------------------------------------------------------- */

enum { PMP_ADDRESS = 0, PMP_MAP_UDP = 1, PMP_MAP_TCP = 2, PMP_BAD_VERSION = 1, PMP_BAD_OPERATION = 5 };

/* Map the port that the request names. A lifetime of 0 removes the mapping; others do not expire. */
static flow *map_port(nat *self, const view *seen, const unsigned char *request, int64_t now_ns)
{
    uint8_t protocol = request[1] == PMP_MAP_TCP ? TCP : UDP;
    uint16_t inside_port = get16(request + 4);
    flow *each = self->by_inside[bucket(protocol, seen->source, inside_port)];
    while (each && (each->remote || each->protocol != protocol || each->inside != seen->source
                    || each->inside_port != inside_port))
        each = each->next_in;
    if (!each)
        each = add(self, (flow){
            .inside = seen->source,
            .inside_port = inside_port,
            .protocol = protocol,
            .used_ns = now_ns,
            .outside_port = free_port(self, protocol, get16(request + 6), now_ns),
        });
    each->closed = get32(request + 8) == 0;
    return each;
}

/* Write the response to `request`. Return its length. */
static int pmp_response(nat *self, const view *seen, const unsigned char *request,
                        unsigned char *response, int64_t now_ns)
{
    response[1] = request[1] | 128;
    put32(response + 4, (uint32_t)(now_ns / 1000000000));
    if (request[0] != 0) { /* Another version, so that PCP clients fall back to NAT-PMP. */
        put16(response + 2, PMP_BAD_VERSION);
        return 8;
    }
    if (request[1] == PMP_ADDRESS) {
        put32(response + 8, self->outside);
        return 12;
    }
    if (seen->transport_length >= 20 && (request[1] == PMP_MAP_UDP || request[1] == PMP_MAP_TCP)) {
        const flow *mapped = map_port(self, seen, request, now_ns);
        put16(response + 8, mapped->inside_port);
        put16(response + 10, mapped->outside_port);
        put32(response + 12, get32(request + 8));
        return 16;
    }
    put16(response + 2, PMP_BAD_OPERATION);
    return 8;
}

int nat_serve(nat *self, unsigned char *packet, int *length, int64_t now_ns)
{
    view seen;
    unsigned char out[8 + 16] = {0};
    int size;
    if (!nat_has(self, "/pmp") || !look(packet, *length, &seen) || seen.protocol != UDP)
        return NAT_DROP;
    if (seen.target_port != PMP_PORT || seen.transport_length < 10)
        return NAT_DROP;
    size = 8 + pmp_response(self, &seen, seen.transport + 8, out + 8, now_ns);
    put16(out, PMP_PORT);
    put16(out + 2, seen.source_port);
    put16(out + 4, (uint32_t)size);
    memcpy(packet + 20, out, (size_t)size);
    *length = answer(packet, &seen, size);
    return NAT_BACK;
}
