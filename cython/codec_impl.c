/* One table of kernels per variant and codec, and the variants that this machine can run. */
#include "codec_impl.h"
#include "usable_variants.h"

#include <float.h>
#include <string.h>
#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>
#endif

#if FLT_EVAL_METHOD != 0
#error "fp32 operations must round to fp32 (on 32-bit x86: -msse2 -mfpmath=sse)"
#endif
#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "payloads are little-endian and are read in place"
#endif
#ifdef __FAST_MATH__
#error "-ffast-math would change results that must be bit-identical on all peers"
#endif

/* An fp32 near 1.5 * 2^23 has no bits below 1, so adding this constant rounds half to even. The low
 * bits of the sum are then the rounded value in two's complement. Correct for |x| < 2^22. */
#define ROUNDER 12582912.0f

static const p2p_outcome fine = {P2P_FINE, -1, 0.0f, 0.0f};

#define REFUSED -1.0f /* returned instead of a peak */

static inline void note(float *peak, float of_block)
{
    *peak = of_block > *peak ? of_block : *peak;
}

static inline p2p_outcome refused(int fault, int64_t block)
{
    return (p2p_outcome){fault, block, 0.0f, 0.0f};
}

/* Combine the outcomes of the full blocks, which were fine, and of the tail. */
static inline p2p_outcome both(p2p_outcome whole, p2p_outcome tail)
{
    if (!tail.fault) {
        note(&tail.read, whole.read);
        note(&tail.made, whole.made);
    }
    return tail;
}

static inline uint32_t bits_of(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, 4);
    return bits;
}

static inline float float_of(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, 4);
    return x;
}

/* Return whether a scale is +0 or from `least` to `most`. As unsigned integers, negative numbers,
 * -0, infinities and NaNs are all above the largest scale. */
static inline int within(float scale, float least, float most)
{
    uint32_t bits = bits_of(scale);
    return bits == 0 || (bits >= bits_of(least) && bits <= bits_of(most));
}

#define PASTE_(a, b) a##_##b
#define PASTE(a, b) PASTE_(a, b)
#define NAME(x) PASTE(PASTE(x, CODEC), VARIANT)
#define VARIANT_NAME(x) PASTE(x, VARIANT)

#define KERNEL
#define VARIANT baseline
#include "codec_variant.h"
#undef KERNEL
#undef VARIANT

#if defined(__x86_64__) && defined(__GNUC__)

#include "lanes_avx2.h"
#define KERNEL TARGET_AVX2
#define VARIANT avx2
#include "codec_variant.h"
#undef LANES
#undef KERNEL
#undef VARIANT

#include "lanes_avx512.h"
#define KERNEL TARGET_AVX512
#define VARIANT avx512
#include "codec_variant.h"
#undef LANES
#undef KERNEL
#undef VARIANT

#endif

static const p2p_kernels *const *codecs_of(int variant)
{
    switch (usable_variant(variant)) {
#if defined(__x86_64__) && defined(__GNUC__)
    case VARIANT_AVX512:
        return codecs_avx512;
    case VARIANT_AVX2:
        return codecs_avx2;
#endif
    case VARIANT_BASELINE:
        return codecs_baseline;
    default:
        return 0;
    }
}

const char *p2p_variant_name(int variant)
{
    return usable_variant_name(variant);
}

const p2p_kernels *p2p_kernels_of(int codec, int variant)
{
    const p2p_kernels *const *codecs = codecs_of(variant);
    return codecs ? codecs[codec] : 0;
}

int64_t p2p_encoded_bytes(int codec, int64_t numel, int64_t block)
{
    int64_t whole = numel / block, tail = numel % block;
    switch (codec) {
    case P2P_FP32:
        return fp32_bytes(numel);
    case P2P_FP16:
        return fp16_bytes(numel);
    case P2P_INT8:
        return whole * int8_bytes(block) + (tail ? int8_bytes(tail) : 0);
    default:
        return whole * int4_bytes(block) + (tail ? int4_bytes(tail) : 0);
    }
}
