/* int8 codec, one fp32 scale for each block: what the kernels compute and what they demand.
 *
 * A payload is, for each block of `block` elements (the last may be shorter), the scale as fp32 in
 * little endian and then the codes. A block with largest magnitude `amax` has
 *
 *     scale = amax / 127      code[i] = round-half-even(x[i] * (127 / amax))
 *
 * and scale 0 with codes 0 if amax < P2P_AMAX_MIN: below that, 127 / amax would come near overflow,
 * and no gradient lives there. Larger than P2P_AMAX_MAX counts as not finite. These limits keep
 * every product and every sum of two such values finite, so a scale within P2P_SCALE_MIN..MAX (or
 * exactly +0) can never make an infinity downstream.
 *
 * Every operation is a single fp32 operation rounded to nearest even, in the order written, so that
 * all variants, on all machines, give the same bits as p2ptrain/kernels/reference.py.
 * Pointers to floats need no alignment. `out` may be `payload` itself, and overlap nothing else.
 */
#ifndef P2PTRAIN_INT8_IMPL_H
#define P2PTRAIN_INT8_IMPL_H

#include <stdint.h>

#define P2P_BLOCK_MAX 4096 /* a block of fp32 sums lies on the stack: 16 KiB */
#define P2P_AMAX_MIN 0x1p-100f
#define P2P_AMAX_MAX 0x1p+100f
#define P2P_SCALE_MIN 0x1p-107f /* <= P2P_AMAX_MIN / 127 */
#define P2P_SCALE_MAX 0x1p+94f  /* >= P2P_AMAX_MAX / 127 */

typedef float p2p_f32 __attribute__((aligned(1), may_alias));

enum { P2P_FINE = 0, P2P_NOT_FINITE = 1, P2P_BAD_SCALE = 2 };

typedef struct {
    int fault;     /* one of the above */
    int64_t block; /* the first block at fault */
} p2p_outcome;

typedef struct {
    const char *name;

    p2p_outcome (*quantise)(const p2p_f32 *src, uint8_t *out, int64_t numel, int64_t block);

    p2p_outcome (*dequantise)(const uint8_t *payload, p2p_f32 *out, int64_t numel, int64_t block);

    /* out = q(weight * (theta - local)) */
    p2p_outcome (*quantise_difference)(const p2p_f32 *theta, const p2p_f32 *local, float weight,
                                       uint8_t *out, int64_t numel, int64_t block);

    /* out = q((deq(payload) + weight * (theta - local)) / divisor) */
    p2p_outcome (*add_difference_requantise)(const uint8_t *payload, const p2p_f32 *theta,
                                             const p2p_f32 *local, float weight, float divisor,
                                             uint8_t *out, int64_t numel, int64_t block);

    /* momentum = mu * momentum + deq(payload); theta = theta - lr * (deq(payload) + mu * momentum).
     * All scales are checked before the first element changes. */
    p2p_outcome (*outer_step)(p2p_f32 *theta, p2p_f32 *momentum, const uint8_t *payload, float lr,
                              float mu, int64_t numel, int64_t block);

    p2p_outcome (*check)(const uint8_t *payload, int64_t numel, int64_t block);
} p2p_int8_kernels;

/* The variants that this machine can run, best first; the last is the compiler's baseline.
 * NULL when `index` is past the end. */
const p2p_int8_kernels *p2p_int8_variant(int index);

#endif
