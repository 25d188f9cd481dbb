/* See sites.h. */
#include "sites.h"

#include <stdlib.h>
#include <string.h>

#include "nat.h"

enum { SITE_NODES_MAX = 16 };

typedef struct {
    nat *chain[2]; /* the NAT next to the nodes first */
    int depth, nodes[SITE_NODES_MAX], count;
} site;

int nodes, site_count;
static site sites[SITES_MAX];
static int site_of[NODES_MAX]; /* 0: no site; s: sites[s - 1] */

static uint32_t ip(unsigned a, unsigned b, unsigned c, unsigned d)
{
    return a << 24 | b << 16 | c << 8 | d;
}

uint32_t target_of(const unsigned char *bytes)
{
    return ip(bytes[16], bytes[17], bytes[18], bytes[19]);
}

int site_number(int node)
{
    return site_of[node];
}

int has_private_address(int node)
{
    return site_of[node] && nat_translates(sites[site_of[node] - 1].chain[0]);
}

int is_inside(uint32_t target, int of_site)
{
    return of_site && target >> 8 == ip(0, 192, 168, (unsigned)of_site);
}

int read_site(char *text)
{
    site *made = &sites[site_count];
    char *list = strchr(text, ':'), *second;
    unsigned number = (unsigned)site_count + 1;
    if (site_count == SITES_MAX || !list)
        return 0;
    *list++ = 0;
    site_count++;
    second = strchr(text, '+');
    if (second)
        *second++ = 0;
    made->depth = second ? 2 : 1;
    made->chain[0] = nat_new(text, second ? ip(100, 64, number, 1) : ip(NET, 77, 1, number));
    if (second)
        made->chain[1] = nat_new(second, ip(NET, 77, 1, number));
    if (!made->chain[0] || (second && !made->chain[1]))
        return 0;
    for (char *word = strtok(list, ","); word; word = strtok(NULL, ",")) {
        int node = atoi(word);
        if (node < 0 || node >= nodes || made->count == SITE_NODES_MAX || site_of[node])
            return 0;
        site_of[node] = site_count;
        made->nodes[made->count++] = node;
    }
    return made->count && (made->count == 1 || nat_translates(made->chain[0]));
}

int place_of(uint32_t target)
{
    int last = (int)(target & 255);
    if (target >> 8 == ip(0, NET, 77, 0))
        return last >= 1 && last <= nodes && !has_private_address(last - 1) ? last - 1 : NOBODY;
    if (target >> 8 == ip(0, NET, 77, 1) && last >= 1 && last <= site_count)
        return sites[last - 1].nodes[0];
    return NOBODY;
}

int place_inside(int node, unsigned char *bytes, int *length, int64_t now)
{
    nat *nearest = sites[site_of[node] - 1].chain[0];
    int last = (int)(target_of(bytes) & 255), other = last - 1;
    if (last == 1)
        return nat_serve(nearest, bytes, length, now) == NAT_BACK ? node : NOBODY;
    if (other == node || other < 0 || other >= nodes || site_of[other] != site_of[node])
        return NOBODY;
    return nat_has(nearest, "/iso") ? NOBODY : other;
}

int place_outside(int node, unsigned char *bytes, int length, int64_t now)
{
    int at = site_of[node], place;
    const site *of = at ? &sites[at - 1] : NULL;
    for (int i = 0; at && i < of->depth; i++)
        if (nat_out(of->chain[i], bytes, length, now) != NAT_PASS)
            return NOBODY;
    place = place_of(target_of(bytes));
    if (place == node && !at)
        return NOBODY;
    if (at && place >= 0 && site_of[place] == at && !nat_has(of->chain[of->depth - 1], "/hair"))
        return NOBODY;
    return place;
}

int receiver(int place, unsigned char *bytes, int *length, int64_t now)
{
    int at = site_of[place], node;
    const site *of = at ? &sites[at - 1] : NULL;
    if (!at || is_inside(target_of(bytes), at))
        return place;
    for (int i = of->depth - 1; i >= 0; i--) {
        int found = nat_in(of->chain[i], bytes, length, now);
        if (found != NAT_PASS)
            return found == NAT_BACK ? TURNED_BACK : NOBODY;
    }
    if (!nat_translates(of->chain[0]))
        return place;
    node = (int)(target_of(bytes) & 255) - 1;
    return node >= 0 && node < NODES_MAX && site_of[node] == at ? node : NOBODY;
}
