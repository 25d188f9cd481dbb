/* Codecs of pseudo-gradients: the formats, what the kernels compute, and what they demand.
 *
 * A payload is one run of blocks of `block` elements; only the last may be shorter. Scales stand
 * before the codes of their block, so a run of whole blocks is one run of bytes. Little endian.
 *
 *     fp32   the values                      |x| <= P2P_AMAX_MAX
 *     fp16   rounded to nearest even         |x| < 65520, so that none becomes infinite
 *     int8   scale fp32, codes -127..127     scale = amax / 127
 *                                            code = round-half-even(x * (127 / amax))
 *     int4   scale bf16, codes -7..7         scale = amax / 7, its low 16 bits rounded up
 *                                            code = round-half-even(x * (1 / scale))
 *
 * where amax is the largest magnitude of the block. int4 has the first half of a block (rounded up)
 * in the low four bits of its bytes and the second in the high ones. int8 and int4 write scale 0 and
 * codes 0 if amax < P2P_AMAX_MIN: below that, 127 / amax would come near overflow, and no gradient
 * lives there. Magnitudes above P2P_AMAX_MAX count as not finite, in all codecs. These limits keep
 * every product and every sum of two such values finite, so a scale within its limits (or exactly +0)
 * can never make an infinity downstream, whatever codes stand beside it.
 *
 * Every operation is a single fp32 operation rounded to nearest even, in the order written, so that
 * all variants, on all machines, give the same bits as p2ptrain/kernels/reference.py.
 * Pointers to floats need no alignment. What is written overlaps nothing that is read, but `out` may
 * be `payload`, `residual_out` may be `residual`, and `sum` may be `theta`.
 */
#ifndef P2PTRAIN_CODEC_IMPL_H
#define P2PTRAIN_CODEC_IMPL_H

#include <stdint.h>

#define P2P_BLOCK_MAX 4096 /* a block of fp32 sums lies on the stack: 16 KiB */
#define P2P_AMAX_MIN 0x1p-100f
#define P2P_AMAX_MAX 0x1p+100f

typedef float p2p_f32 __attribute__((aligned(1), may_alias));
typedef uint16_t p2p_u16 __attribute__((aligned(1), may_alias));

enum { P2P_FP32, P2P_FP16, P2P_INT8, P2P_INT4, P2P_CODECS };
enum { P2P_FINE, P2P_NOT_FINITE, P2P_BAD_SCALE };

/* The largest magnitudes that payloads stand for, from their scales alone where there are some, for
 * codes that quantise writes: -128 and -8, which it does not, stand for a 127th and a seventh more. A
 * pass that reads or writes a payload knows them anyway, and another one would cost a third of it. */
typedef struct {
    int fault;          /* one of the above */
    int64_t block;      /* the first block at fault */
    float read, made;   /* the peaks of `payload` and of `out`, if it is fine; 0 where there is none */
} p2p_outcome;

/* One peer's part in a sum. `local` may be NULL and stands for zeros then, and so may each residual. */
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
     * residual_out = sum - divisor * deq(out), which is refused like a sum if it is not finite. */
    p2p_outcome (*add_difference_requantise)(p2p_share share, int64_t numel, int64_t block);

    /* momentum = mu * momentum + deq(payload); theta = theta - lr * (deq(payload) + mu * momentum).
     * The whole payload is checked before the first element changes. */
    p2p_outcome (*outer_step)(p2p_f32 *theta, p2p_f32 *momentum, const uint8_t *payload, float lr,
                              float mu, int64_t numel, int64_t block);

    /* Is every block one that quantise could have written, codes of int8 and int4 apart? */
    p2p_outcome (*check)(const uint8_t *payload, int64_t numel, int64_t block);
} p2p_kernels;

/* The variants that this machine can run, best first; the last is the compiler's baseline.
 * NULL when `variant` is past the end. `codec` is one of the above. */
const p2p_kernels *p2p_kernels_of(int codec, int variant);
const char *p2p_variant_name(int variant);

int64_t p2p_encoded_bytes(int codec, int64_t numel, int64_t block);

#endif
