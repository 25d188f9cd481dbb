/* What a home router or a carrier does to the IPv4 packets of one site. This file knows no sockets
 * and no clock: the time is an argument.
 *
 * A kind consists of a base and modifiers, for example "cone/rst".
 *
 *     full      one outside port for each inside port; anybody may send to it
 *     cone      the same, but only an address and port that was called may answer
 *               (a port-restricted cone)
 *     sym       a different outside port for each address that is called (symmetric; random ports)
 *     fw        no translation; only an address and port that was called may answer (a firewall)
 *     /rst      an uninvited call is answered with a reset instead of silence
 *     /rand     full, cone: the outside port is random, as with carriers; otherwise it is the
 *               inside port if that is free
 *     /seq      random outside ports are sequential instead
 *     /hair     packets from inside to the outside address come back in (hairpinning)
 *     /iso      the nodes of the site cannot reach each other inside (customers of a carrier)
 *     /pmp      the gateway answers NAT-PMP (RFC 6886) on port 5351; nodes may map ports
 *     /ttl=S    a mapping that was idle for S seconds is forgotten; the default is 120
 */
#ifndef P2PTRAIN_TESTS_NAT_H
#define P2PTRAIN_TESTS_NAT_H

#include <stdint.h>

typedef struct nat nat;

/* NAT_BACK: the packet was replaced by an answer to its sender. */
enum { NAT_DROP, NAT_PASS, NAT_BACK };

/* Return a NAT with this outside address, in host byte order; NULL if there is no such kind. */
nat *nat_new(const char *kind, uint32_t outside);
void nat_free(nat *);

int nat_has(const nat *, const char *modifier);
int nat_translates(const nat *);

/* Translate a packet that leaves the site. */
int nat_out(nat *, unsigned char *packet, int length, int64_t now_ns);

/* Translate a packet that arrives from outside. `length` changes if the packet becomes an answer,
 * so the buffer has at least NAT_ANSWER_BYTES. */
int nat_in(nat *, unsigned char *packet, int *length, int64_t now_ns);

/* Answer a packet for the gateway itself: NAT_BACK or NAT_DROP. The buffer is as for nat_in. */
int nat_serve(nat *, unsigned char *packet, int *length, int64_t now_ns);

#define NAT_ANSWER_BYTES 64

#endif
