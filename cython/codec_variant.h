/* All codecs for one variant. Included by codec_impl.c once for each, with KERNEL (the function
 * attributes) and VARIANT (its name) defined: hence no include guard.
 *
 * A codec's own header gives
 *     put(x, out, n)          quantise a block; 0 if some x is not finite or too large
 *     fine(block, n)          is it a block that put could have written, codes apart?
 *     EACH_DELTA(block, n, …) the statements for each i in 0..n-1 in order, `delta` being deq(block)[i]
 *     BLOCK_BYTES(n)          of a block of n elements
 *     USUAL_BLOCK             a length for which the compiler makes loops of its own
 * and codec_body.h makes the six kernels of these. */

#define INLINE static inline __attribute__((always_inline)) KERNEL

/* The bits of the largest magnitude. As integers, magnitudes order as they do as floats, with
 * infinities and then NaNs on top: one reduction finds the scale and everything not finite. */
INLINE uint32_t VARIANT_NAME(amax_bits)(const p2p_f32 *x, int n)
{
    int32_t top = 0;
    for (int i = 0; i < n; i++) {
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
#undef INLINE
