/* Codecs of pseudo-gradients: the formats, and the results and preconditions of the kernels.
 *
 * A payload is a sequence of blocks of `block` elements; only the last may be shorter. A scale
 * precedes the codes of its block, so consecutive blocks are one byte range. Little-endian.
 *
 *     fp32   the values                      |x| <= P2P_AMAX_MAX
 *     fp16   rounded to nearest even         |x| < 65520, so that the result is finite
 *     int8   scale fp32, codes -127..127     scale = amax / 127
 *                                            code = round-half-even(x * (127 / amax))
 *     int4   scale bf16, codes -7..7         scale = amax / 7, its low 16 bits rounded up
 *                                            code = round-half-even(x * (1 / scale))
 *
 * where amax is the largest magnitude of the block. int4 has the first half of a block (rounded up)
 * in the low four bits of its bytes, and the second half in the high bits. int8 and int4 write
 * scale 0 and codes 0 if amax < P2P_AMAX_MIN: below that, 127 / amax would nearly overflow, and
 * gradients are never that small. In all codecs, magnitudes above P2P_AMAX_MAX count as not finite.
 * With these limits, every product and every sum of two such values is finite. So a scale within
 * its limits, or exactly +0, cannot result in an infinity, whatever its codes are.
 *
 * Every operation is a single fp32 operation rounded to nearest even, in the order written. So all
 * variants, on all machines, give the same bits as p2ptrain/kernels/reference.py. Pointers to
 * floats need not be aligned. Outputs must not overlap inputs, except that `out` may be `payload`,
 * `residual_out` may be `residual`, and `sum` may be `theta`.
 */
#ifndef P2PTRAIN_CODEC_IMPL_H
#define P2PTRAIN_CODEC_IMPL_H

#include <stdint.h>

#define P2P_BLOCK_MAX 4096 /* a block of fp32 sums on the stack takes 4096 * 4 bytes = 16 KiB */
#define P2P_AMAX_MIN 0x1p-100f
#define P2P_AMAX_MAX 0x1p+100f

typedef float p2p_f32 __attribute__((aligned(1), may_alias));
typedef uint16_t p2p_u16 __attribute__((aligned(1), may_alias));

enum { P2P_FP32, P2P_FP16, P2P_INT8, P2P_INT4, P2P_CODECS };
enum { P2P_FINE, P2P_NOT_FINITE, P2P_BAD_SCALE };

/* A peak is the largest magnitude in a payload. In codecs with scales it is computed only from the
 * scales, and is valid for the codes that quantise writes. The codes -128 and -8, which quantise
 * never writes, exceed it by 1/127 and 1/7. A pass that reads or writes a payload gets the peak at
 * no cost; a separate pass would take a third of that pass's time. */
typedef struct {
    int fault;          /* P2P_FINE, P2P_NOT_FINITE or P2P_BAD_SCALE */
    int64_t block;      /* the first block at fault */
    float read, made;   /* if fine: the peaks of `payload` and of `out`, or 0 */
} p2p_outcome;

/* One peer's share of a sum. If `local` or a residual is NULL, it counts as zeros. */
typedef struct {
    const uint8_t *payload;
    const p2p_f32 *theta, *local, *residual;
    float weight, divisor;
    uint8_t *out;
    p2p_f32 *residual_out, *sum;
} p2p_share;

typedef struct {
    /* out = q(src) */
    p2p_outcome (*quantise)(const p2p_f32 *src, uint8_t *out, int64_t numel, int64_t block);

    /* out = deq(payload) */
    p2p_outcome (*dequantise)(const uint8_t *payload, p2p_f32 *out, int64_t numel, int64_t block);

    /* sum = weight * (theta - local) [+ residual]; out = q(sum); residual_out = sum - deq(out) */
    p2p_outcome (*quantise_difference)(p2p_share share, int64_t numel, int64_t block);

    /* sum = deq(payload) + weight * (theta - local) [+ residual] */
    p2p_outcome (*add_difference)(p2p_share share, int64_t numel, int64_t block);

    /* sum = deq(payload) + weight * (theta - local) [+ residual]; out = q(sum / divisor);
     * residual_out = sum - divisor * deq(out). Residuals that are not finite are refused,
     * as sums are. */
    p2p_outcome (*add_difference_requantise)(p2p_share share, int64_t numel, int64_t block);

    /* momentum = mu * momentum + deq(payload); theta = theta - lr * (deq(payload) + mu * momentum).
     * The whole payload is checked before the first element changes. */
    p2p_outcome (*outer_step)(p2p_f32 *theta, p2p_f32 *momentum, const uint8_t *payload, float lr,
                              float mu, int64_t numel, int64_t block);

    /* Check that quantise could have written every block. int8 and int4 codes are not checked. */
    p2p_outcome (*check)(const uint8_t *payload, int64_t numel, int64_t block);
} p2p_kernels;

/* Return the kernels or the name of a variant, or NULL if there is no such variant. The variants
 * that this machine can run are numbered, fastest first; the last is the compiler's baseline.
 * `codec` is one of P2P_FP32 to P2P_INT4. */
const p2p_kernels *p2p_kernels_of(int codec, int variant);
const char *p2p_variant_name(int variant);

int64_t p2p_encoded_bytes(int codec, int64_t numel, int64_t block);

#endif
