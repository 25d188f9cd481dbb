/* One table of kernels for each variant, and which of them this machine can run. */
#include "int8_impl.h"

#include <float.h>
#include <string.h>

#if FLT_EVAL_METHOD != 0
#error "fp32 operations must round to fp32 (on 32-bit x86: -msse2 -mfpmath=sse)"
#endif
#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "scales are little endian on the wire and are read in place"
#endif
#ifdef __FAST_MATH__
#error "-ffast-math changes bits that peers compare"
#endif

/* Adding 1.5 * 2^23 leaves an fp32 no bits below 1, so it rounds half to even, as the hardware adds;
 * the low byte of the sum is then the rounded value in two's complement. Right for |x| < 2^22. */
#define ROUNDER 12582912.0f

static const p2p_outcome fine = {P2P_FINE, -1};

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

static inline float scale_at(const uint8_t *at)
{
    float scale;
    memcpy(&scale, at, 4);
    return scale;
}

/* As unsigned integers, negatives, -0, infinities and NaNs all lie above the largest scale. */
static inline int scale_is_fine(float scale)
{
    uint32_t bits = bits_of(scale);
    return bits == 0 || (bits >= bits_of(P2P_SCALE_MIN) && bits <= bits_of(P2P_SCALE_MAX));
}

static p2p_outcome check_scales(const uint8_t *payload, int64_t numel, int64_t block)
{
    int64_t blocks = (numel + block - 1) / block;
    for (int64_t b = 0; b < blocks; b++)
        if (!scale_is_fine(scale_at(payload + b * (block + 4))))
            return (p2p_outcome){P2P_BAD_SCALE, b};
    return fine;
}

#define KERNEL
#define NAME(x) x##_baseline
#define NAME_TEXT "baseline"
#include "int8_body.h"
#undef KERNEL
#undef NAME
#undef NAME_TEXT

#if defined(__x86_64__) && defined(__GNUC__)

#define KERNEL __attribute__((target("avx2")))
#define NAME(x) x##_avx2
#define NAME_TEXT "avx2"
#include "int8_body.h"
#undef KERNEL
#undef NAME
#undef NAME_TEXT

#define KERNEL __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,prefer-vector-width=512")))
#define NAME(x) x##_avx512
#define NAME_TEXT "avx512"
#include "int8_body.h"
#undef KERNEL
#undef NAME
#undef NAME_TEXT

const p2p_int8_kernels *p2p_int8_variant(int index)
{
    const p2p_int8_kernels *usable[3];
    int count = 0;
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
        usable[count++] = &kernels_avx512;
    if (__builtin_cpu_supports("avx2"))
        usable[count++] = &kernels_avx2;
    usable[count++] = &kernels_baseline;
    return index >= 0 && index < count ? usable[index] : 0;
}

#else

const p2p_int8_kernels *p2p_int8_variant(int index)
{
    return index == 0 ? &kernels_baseline : 0;
}

#endif
