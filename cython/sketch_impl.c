/* The variants of the kernel of sketches, and those that this machine can run. */
#include "sketch_impl.h"
#include "usable_variants.h"

#include <float.h>
#include <math.h>
#include <string.h>

#if FLT_EVAL_METHOD != 0
#error "operations must round to their own type (on 32-bit x86: -msse2 -mfpmath=sse)"
#endif
#ifdef __FAST_MATH__
#error "-ffast-math would change results that must be bit-identical on all peers"
#endif

/* A double near 1.5 * 2^52 has no bits below 1, so adding this constant rounds half to even, and
 * subtracting it again is exact. Correct for magnitudes below 2^51. */
#define ROUNDER 6755399441055744.0

/* Rows after which the buckets are emptied. A bucket gets one element of at most 2^31 units from
 * each row, and a double is exact up to 2^53. */
#define ROWS_MAX (1 << 21)

static inline uint32_t bits_of(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, 4);
    return bits;
}

/* Return x with its sign changed if the highest bit of `sign` is set. */
static inline double flipped(double x, uint64_t sign)
{
    uint64_t bits;
    memcpy(&bits, &x, 8);
    bits ^= sign & 0x8000000000000000ull;
    memcpy(&x, &bits, 8);
    return x;
}

/* Return the largest allowed magnitude, 2^31 units, as the bits of a float. If no float is so
 * large, all finite ones are allowed; if none is so small, only zeros are. */
static int32_t limit_of(int unit_exponent)
{
    double limit = ldexp(1.0, P2P_ELEMENT_BITS + unit_exponent);
    return (int32_t)bits_of(limit > FLT_MAX ? FLT_MAX : (float)limit);
}

/* Multiplication modulo 2^64 is intended. */
static inline void words_of(uint64_t seed, int64_t row, uint64_t *words)
{
    for (uint64_t j = 0; j < 5; j++) {
        uint64_t z = seed + (5 * (uint64_t)row + j + 1) * 0x9E3779B97F4A7C15ull;
        z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9ull;
        z = (z ^ z >> 27) * 0x94D049BB133111EBull;
        words[j] = z ^ z >> 31;
    }
}

/* Add the buckets to the sums, and empty them. */
static void gather(double *buckets, int64_t *sums)
{
    for (int i = 0; i < P2P_SKETCH_WIDTH; i++) {
        sums[i] += (int64_t)buckets[i] + (int64_t)buckets[i + P2P_SKETCH_WIDTH];
        buckets[i] = buckets[i + P2P_SKETCH_WIDTH] = 0.0;
    }
}

#define PASTE_(a, b) a##_##b
#define PASTE(a, b) PASTE_(a, b)
#define VARIANT_NAME(x) PASTE(x, VARIANT)

#define KERNEL
#define VARIANT baseline
#include "sketch_variant.h"
#undef KERNEL
#undef VARIANT

#if defined(__x86_64__) && defined(__GNUC__)

#define KERNEL TARGET_AVX2
#define VARIANT avx2
#include "sketch_variant.h"
#undef KERNEL
#undef VARIANT

#define KERNEL TARGET_AVX512
#define VARIANT avx512
#include "sketch_variant.h"
#undef KERNEL
#undef VARIANT

#endif

const char *p2p_sketch_variant_name(int variant)
{
    return usable_variant_name(variant);
}

p2p_sketch_kernel p2p_sketch_kernel_of(int variant)
{
    switch (usable_variant(variant)) {
#if defined(__x86_64__) && defined(__GNUC__)
    case VARIANT_AVX512:
        return sketch_avx512;
    case VARIANT_AVX2:
        return sketch_avx2;
#endif
    case VARIANT_BASELINE:
        return sketch_baseline;
    default:
        return 0;
    }
}
