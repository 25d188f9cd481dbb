/* Emulate a wide-area network between network namespaces on one machine.
 *
 * The program makes the namespaces wan0, wan1, …, each with a TUN device tun0, and passes IPv4
 * packets between them with a delay, jitter, random loss, and limited rates with finite queues.
 * The kernel's own TCP runs at both ends. It needs root and /dev/net/tun.
 *
 *     wan -n NODES [-d DELAY_MS] [-j JITTER_MS] [-l LOSS_PERCENT] [-r MBIT] [-q QUEUE_MS]
 *         [-R NODE:MBIT]... [-D NODE:NODE:DELAY_MS]... [-m MTU] [-N KIND[+KIND]:NODE[,NODE]]...
 *         -- COMMAND...
 *
 * -d is the delay of one way. -r limits each node's uplink and downlink, and -R those of one node.
 * -D sets the delay of one path. Node i has the address 10.77.0.(i+1).
 *
 * -N puts nodes behind a NAT or a firewall (nat.h lists the kinds), or behind two, the nearer one
 * first: -N cone+sym:3 is a home router behind a carrier's NAT. The nodes of the s-th -N have the
 * addresses 192.168.s.(i+1), the gateway 192.168.s.1 and the outside address 10.77.1.s. Between two
 * NATs the address is 100.64.s.1. Behind fw, nodes keep 10.77.0.(i+1).
 *
 * COMMAND runs in the caller's namespace and enters a node with `ip netns exec wan1 …`. A node is
 * cut off with `ip -n wan1 link set tun0 down`. At the end of COMMAND the namespaces are removed.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/if.h>
#include <linux/if_tun.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "nat.h"
#include "sites.h"

enum { OVERRIDES_MAX = 1024 };

typedef struct {
    int64_t at_ns;
    uint64_t serial; /* orders packets with the same time */
    int place, length; /* place: the node, or any node of its site */
    unsigned char *bytes;
} packet;

static int device_of[NODES_MAX];
static double delay_ms[NODES_MAX][NODES_MAX], rate_mbit[NODES_MAX];
static int64_t up_free_ns[NODES_MAX], down_free_ns[NODES_MAX]; /* when the line is free again */
static double jitter_ms, loss, queue_ms = 100;
static struct { uint64_t passed, lost, queue_full, by_nat; } counts;

static int64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000LL + now.tv_nsec;
}

static double drawn(void)
{
    static uint64_t state = 88172645463325252ULL;
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (double)(state >> 11) * (1.0 / 9007199254740992.0);
}

__attribute__((format(printf, 1, 2))) static void shell(const char *format, ...)
{
    char command[512];
    va_list rest;
    va_start(rest, format);
    vsnprintf(command, sizeof command, format, rest);
    va_end(rest);
    if (system(command))
        fprintf(stderr, "wan: this command failed: %s\n", command);
}

static void fail(const char *what)
{
    perror(what);
    exit(1);
}

/* Packets under way, as a heap by time -------------------------------------------------------- */

static packet *heap;
static size_t heap_count, heap_room;

static int earlier(const packet *one, const packet *other)
{
    return one->at_ns < other->at_ns || (one->at_ns == other->at_ns && one->serial < other->serial);
}

static void swap(size_t one, size_t other)
{
    packet kept = heap[one];
    heap[one] = heap[other];
    heap[other] = kept;
}

static void push(packet given)
{
    static uint64_t serial;
    size_t at = heap_count++;
    if (at == heap_room) {
        heap_room = heap_room ? heap_room * 2 : 4096;
        heap = realloc(heap, heap_room * sizeof *heap);
        if (!heap)
            abort();
    }
    given.serial = serial++;
    for (heap[at] = given; at && earlier(&heap[at], &heap[(at - 1) / 2]); at = (at - 1) / 2)
        swap(at, (at - 1) / 2);
}

static packet pop(void)
{
    packet first = heap[0];
    size_t at = 0;
    heap[0] = heap[--heap_count];
    for (;;) {
        size_t least = at;
        for (size_t child = 2 * at + 1; child <= 2 * at + 2 && child < heap_count; child++)
            if (earlier(&heap[child], &heap[least]))
                least = child;
        if (least == at)
            return first;
        swap(at, least);
        at = least;
    }
}

/* The way of a packet ------------------------------------------------------------------------- */

static void give(int node, const unsigned char *bytes, int length)
{
    if (write(device_of[node], bytes, (size_t)length) < 0 && errno != EAGAIN && errno != EIO)
        perror("wan: write");
    counts.passed++;
}

/* Return when a line has sent a packet that arrives at `at`; -1 if its queue is full. */
static int64_t through_line(int64_t *free_ns, double mbit, int length, int64_t at)
{
    int64_t begins = *free_ns > at ? *free_ns : at;
    if (mbit <= 0)
        return at;
    if (begins - at > (int64_t)(queue_ms * 1e6))
        return -1;
    return *free_ns = begins + (int64_t)(length * 8e3 / mbit);
}

static void send_packet(int node, unsigned char *bytes, int length)
{
    int64_t now = now_ns(), at;
    packet made;
    int place;
    if (has_private_address(node) && is_inside(target_of(bytes), site_number(node))) {
        place = place_inside(node, bytes, &length, now);
        if (place >= 0)
            give(place, bytes, length); /* The site's own network has no delay. */
        else
            counts.by_nat++;
        return;
    }
    place = place_outside(node, bytes, length, now);
    if (place < 0) {
        counts.by_nat += target_of(bytes) >> 28 != 14; /* Multicast is not worth counting. */
        return;
    }
    if (loss > 0 && drawn() < loss) {
        counts.lost++;
        return;
    }
    at = through_line(&up_free_ns[node], rate_mbit[node], length, now);
    if (at >= 0) {
        at += (int64_t)((delay_ms[node][place] + (jitter_ms > 0 ? drawn() * jitter_ms : 0)) * 1e6);
        at = through_line(&down_free_ns[place], rate_mbit[place], length, at);
    }
    if (at < 0) {
        counts.queue_full++;
        return;
    }
    made = (packet){.at_ns = at, .place = place, .length = length};
    made.bytes = malloc((size_t)(length > NAT_ANSWER_BYTES ? length : NAT_ANSWER_BYTES));
    if (!made.bytes)
        abort();
    memcpy(made.bytes, bytes, (size_t)length);
    push(made);
}

static void deliver(packet given, int64_t now)
{
    int node = receiver(given.place, given.bytes, &given.length, now);
    if (node == TURNED_BACK) {
        int back = place_of(target_of(given.bytes));
        if (back >= 0) {
            given.at_ns = now + (int64_t)(delay_ms[given.place][back] * 1e6);
            given.place = back;
            push(given);
            return;
        }
    }
    if (node >= 0)
        give(node, given.bytes, given.length);
    else
        counts.by_nat++;
    free(given.bytes);
}

/* Set-up and the loop ------------------------------------------------------------------------- */

static void enter(int namespace)
{
    if (namespace < 0 || setns(namespace, CLONE_NEWNET))
        fail("wan: cannot enter a network namespace");
}

static int open_device(int node, int own_namespace)
{
    char path[64];
    struct ifreq request = {.ifr_flags = IFF_TUN | IFF_NO_PI};
    int namespace, device;
    snprintf(path, sizeof path, "/var/run/netns/wan%d", node);
    namespace = open(path, O_RDONLY | O_CLOEXEC);
    enter(namespace);
    close(namespace);
    device = open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);
    strcpy(request.ifr_name, "tun0");
    if (device < 0 || ioctl(device, TUNSETIFF, &request))
        fail("wan: cannot open a TUN device");
    enter(own_namespace);
    return device;
}

static void make_node(int node, int own_namespace, int mtu)
{
    int private = has_private_address(node), third = private ? site_number(node) : 0;
    char net[16];
    snprintf(net, sizeof net, "%d.%d", private ? 192 : NET, private ? 168 : 77);
    shell("ip netns del wan%d 2>/dev/null; ip netns add wan%d", node, node);
    device_of[node] = open_device(node, own_namespace);
    shell("ip -n wan%d link set lo up", node);
    shell("ip -n wan%d link set tun0 mtu %d txqueuelen 5000 up", node, mtu);
    shell("ip -n wan%d addr add %s.%d.%d/24 dev tun0", node, net, third, node + 1);
    if (private)
        shell("ip -n wan%d route add default via 192.168.%d.1 dev tun0", node, third);
    else if (site_count)
        shell("ip -n wan%d route add default dev tun0", node);
}

static void read_packets(int node)
{
    static unsigned char bytes[65536];
    for (int i = 0; i < 64; i++) { /* Other devices must not wait for too long. */
        ssize_t length = read(device_of[node], bytes, sizeof bytes);
        if (length < 20)
            return;
        if (bytes[0] >> 4 == 4)
            send_packet(node, bytes, (int)length);
    }
}

/* Pass packets until the process `child` ends. Return its status. */
static int pass_packets(int poll, pid_t child)
{
    const int64_t idle_ns = 50000000; /* how often to look whether `child` has ended */
    int status;
    while (waitpid(child, &status, WNOHANG) != child) {
        struct epoll_event ready[NODES_MAX];
        struct timespec wait = {0, idle_ns};
        int64_t now = now_ns();
        int count;
        while (heap_count && heap[0].at_ns <= now)
            deliver(pop(), now);
        if (heap_count) {
            int64_t left = heap[0].at_ns - now_ns();
            wait.tv_nsec = left < 0 ? 0 : left < idle_ns ? left : idle_ns;
        }
        count = epoll_pwait2(poll, ready, NODES_MAX, &wait, NULL);
        for (int i = 0; i < count; i++)
            read_packets((int)ready[i].data.u32);
    }
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static void usage(void)
{
    fprintf(stderr, "usage: wan -n NODES [-d MS] [-j MS] [-l PERCENT] [-r MBIT] [-q MS]\n"
                    "           [-R NODE:MBIT] [-D NODE:NODE:MS] [-m MTU]\n"
                    "           [-N KIND[+KIND]:NODE[,NODE]] -- COMMAND...\n");
    exit(2);
}

typedef struct { int one, other; double value; } override;

/* Read the options in an order that does not matter. Return the index of COMMAND. */
static int read_options(int count, char **words, int *mtu)
{
    static override rates[OVERRIDES_MAX], delays[OVERRIDES_MAX];
    char *site_texts[SITES_MAX];
    int rate_count = 0, delay_count = 0, text_count = 0, option;
    double delay = 0, rate = 0;
    override each = {0};
    while ((option = getopt(count, words, "+n:d:j:l:r:q:R:D:m:N:")) != -1) {
        switch (option) {
        case 'n': nodes = atoi(optarg); break;
        case 'd': delay = atof(optarg); break;
        case 'j': jitter_ms = atof(optarg); break;
        case 'l': loss = atof(optarg) / 100; break;
        case 'r': rate = atof(optarg); break;
        case 'q': queue_ms = atof(optarg); break;
        case 'm': *mtu = atoi(optarg); break;
        case 'N':
            if (text_count == SITES_MAX)
                usage();
            site_texts[text_count++] = optarg;
            break;
        case 'R':
            if (sscanf(optarg, "%d:%lf", &each.one, &each.value) != 2 || rate_count == OVERRIDES_MAX)
                usage();
            rates[rate_count++] = each;
            break;
        case 'D':
            if (sscanf(optarg, "%d:%d:%lf", &each.one, &each.other, &each.value) != 3
                || delay_count == OVERRIDES_MAX)
                usage();
            delays[delay_count++] = each;
            break;
        default: usage();
        }
    }
    if (nodes < 2 || nodes > NODES_MAX || optind >= count)
        usage();
    for (int i = 0; i < nodes; i++) {
        rate_mbit[i] = rate;
        for (int k = 0; k < nodes; k++)
            delay_ms[i][k] = delay;
    }
    for (int i = 0; i < rate_count; i++)
        if (rates[i].one >= 0 && rates[i].one < nodes)
            rate_mbit[rates[i].one] = rates[i].value;
    for (int i = 0; i < delay_count; i++) {
        each = delays[i];
        if (each.one < 0 || each.one >= nodes || each.other < 0 || each.other >= nodes)
            usage();
        delay_ms[each.one][each.other] = delay_ms[each.other][each.one] = each.value;
    }
    for (int i = 0; i < text_count; i++)
        if (!read_site(site_texts[i])) {
            fprintf(stderr, "wan: -N %s: there is no such kind or node\n", site_texts[i]);
            exit(2);
        }
    return optind;
}

int main(int count, char **words)
{
    int mtu = 1500, command = read_options(count, words, &mtu), status;
    int own_namespace = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
    int poll = epoll_create1(EPOLL_CLOEXEC);
    pid_t child;
    for (int i = 0; i < nodes; i++) {
        struct epoll_event wanted = {.events = EPOLLIN, .data.u32 = (uint32_t)i};
        make_node(i, own_namespace, mtu);
        epoll_ctl(poll, EPOLL_CTL_ADD, device_of[i], &wanted);
    }
    child = fork();
    if (!child) {
        execvp(words[command], words + command);
        perror("wan: cannot run the command");
        _exit(127);
    }
    status = pass_packets(poll, child);
    fprintf(stderr, "wan: %lu packets passed, %lu lost, %lu dropped at full queues, %lu by NATs\n",
            counts.passed, counts.lost, counts.queue_full, counts.by_nat);
    for (int i = 0; i < nodes; i++)
        shell("ip netns del wan%d", i);
    return status;
}
