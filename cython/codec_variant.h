/* All codecs for one variant. codec_impl.c includes this file once for each variant, with KERNEL
 * (the function attributes) and VARIANT (the name) defined. So it has no include guard.
 *
 * Each loop body is written once, as a macro with the argument L. If the variant has lanes (from
 * lanes_*.h), the macro runs with L = `lane` for LANES elements at a time, and with L = `one` for
 * the rest. A variant without lanes has only `one`, and the compiler vectorises its loops. L##_f is
 * a float or a vector of LANES floats.
 *
 * A codec's own header defines
 *     put(x, out, n)            quantise a block, and return its peak; a negative value if an x
 *                               is not finite or too large
 *     peak(block, n)            return the largest magnitude that put can have written; a negative
 *                               value if put cannot have written the scale or, without scales,
 *                               a value
 *     EACH_DELTA(block, n, DO)  run DO(L) for i in 0..n-1 in order, where `delta` is deq(block)[i]
 *     BLOCK_BYTES(n)            the bytes of a block of n elements
 *     USUAL_BLOCK               a length for which the compiler generates separate loops
 * and codec_body.h builds the kernels from these. */

#define INLINE static inline __attribute__((always_inline)) KERNEL

#ifndef P2P_ONE
#define P2P_ONE
typedef float one_f;
#define one_get(at) (*(at))
#define one_put(at, x) (*(at) = (x))

/* Process LANES elements at a time as long as possible, then one at a time. */
#define EACH(n, DO)                                                                                \
    do {                                                                                           \
        int i = 0;                                                                                 \
        IN_LANES(i, n, DO(lane));                                                                  \
        for (; i < (n); i++) {                                                                     \
            DO(one);                                                                               \
        }                                                                                          \
    } while (0)
#define lane_f VARIANT_NAME(lane_f)
#define lane_i VARIANT_NAME(lane_i)
#define lane_get(at) VARIANT_NAME(get)(at)
#define lane_put(at, x) VARIANT_NAME(put)(at, x)
#define LANE(operation) VARIANT_NAME(operation)
#endif

#ifdef LANES
#define IN_LANES(i, end, ...)                                                                      \
    for (; i + LANES <= (end); i += LANES) {                                                       \
        __VA_ARGS__;                                                                               \
    }
#else
#define IN_LANES(i, end, ...)
#endif

/* Return the bits of the largest magnitude. As integers, magnitudes have the same order as floats,
 * with infinities and then NaNs above all others. So one reduction finds the scale and detects
 * values that are not finite. */
INLINE uint32_t VARIANT_NAME(amax_bits)(const p2p_f32 *x, int n)
{
    int i = 0;
    int32_t top = 0;
#ifdef LANES
    lane_i tops = {0};
    IN_LANES(i, n, tops = LANE(max)(tops, LANE(magnitude)(lane_get(x + i))));
    top = LANE(top)(tops);
#endif
    for (; i < n; i++) {
        int32_t magnitude = (int32_t)(bits_of(x[i]) & 0x7fffffffu);
        top = magnitude > top ? magnitude : top;
    }
    return (uint32_t)top;
}

#define CODEC fp32
#include "codec_fp32.h"
#include "codec_body.h"

#define CODEC fp16
#include "codec_fp16.h"
#include "codec_body.h"

#define CODEC int8
#include "codec_int8.h"
#include "codec_body.h"

#define CODEC int4
#include "codec_int4.h"
#include "codec_body.h"

#define TABLE(codec) &PASTE(PASTE(kernels, codec), VARIANT)
static const p2p_kernels *const VARIANT_NAME(codecs)[P2P_CODECS] = {
    [P2P_FP32] = TABLE(fp32),
    [P2P_FP16] = TABLE(fp16),
    [P2P_INT8] = TABLE(int8),
    [P2P_INT4] = TABLE(int4),
};

#undef TABLE
#undef IN_LANES
#undef INLINE
