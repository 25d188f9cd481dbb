/* The nodes of the emulator, their addresses, and the NATs that they are behind. wan.c describes the
 * addresses. A place is a node, or any node of its site. */
#ifndef P2PTRAIN_TESTS_SITES_H
#define P2PTRAIN_TESTS_SITES_H

#include <stdint.h>

#ifndef NET
#define NET 10 /* the first byte of outside addresses; with 11, they are public */
#endif

enum { NODES_MAX = 250, SITES_MAX = 64 };
enum { NOBODY = -1, TURNED_BACK = -2 };

extern int nodes;      /* the number of nodes; set it first */
extern int site_count; /* the number of sites */

/* Read "cone+sym:3,4", which says which nodes are behind which NATs. Return whether it is valid. */
int read_site(char *text);

/* Return the number of the node's site, or 0. */
int site_number(int node);
int has_private_address(int node);

uint32_t target_of(const unsigned char *packet);
int is_inside(uint32_t target, int site);

/* Return the place that has an address outside; or NOBODY. */
int place_of(uint32_t target);

/* Return the node of `node`'s own site, or `node` itself if its gateway answered; or NOBODY. */
int place_inside(int node, unsigned char *packet, int *length, int64_t now_ns);

/* Return the place to which a packet of `node` goes through the NATs of its site; or NOBODY. */
int place_outside(int node, unsigned char *packet, int length, int64_t now_ns);

/* Return the node at `place` that gets an arriving packet, NOBODY, or TURNED_BACK if the packet is
 * now an answer to its sender. */
int receiver(int place, unsigned char *packet, int *length, int64_t now_ns);

#endif
