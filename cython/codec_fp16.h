/* The values in IEEE half precision, including subnormals. Conversion uses the CPU's instructions
 * if available, otherwise integer arithmetic that compilers vectorise. Neither is affected by a
 * mode that flushes subnormals to zero. As in fp32, blocks only determine where a vector can be
 * split, and where a fault is reported. */

#define USUAL_BLOCK 256
#define BLOCK_BYTES(n) fp16_bytes(n)
#ifndef P2P_FP16_ONCE
#define P2P_FP16_ONCE
static inline int64_t fp16_bytes(int64_t n)
{
    return 2 * n;
}

#define FP16_OVERFLOW 65520.0f /* halfway from the largest half to the next, so it rounds up */
#define HALF_NORMAL_MIN 0x1p-14f

/* Round to nearest even. A magnitude below 2^-14 is rounded by adding it to 0.5: the last bit of an
 * fp32 of that size is worth 2^-24, like that of a subnormal half. */
static inline uint16_t half_of(float x)
{
    uint32_t sign = bits_of(x) & 0x80000000u, magnitude = bits_of(x) ^ sign;
    uint32_t small = bits_of(float_of(magnitude) + 0.5f) - bits_of(0.5f);
    uint32_t usual = (magnitude + 0xfffu + (magnitude >> 13 & 1u) - (112u << 23)) >> 13;
    return (uint16_t)(sign >> 16 | (magnitude < bits_of(HALF_NORMAL_MIN) ? small : usual));
}

static inline float float_of_half(uint16_t half)
{
    uint32_t magnitude = (half & 0x7fffu) << 13;
    uint32_t small = bits_of(float_of(magnitude + (113u << 23)) - HALF_NORMAL_MIN);
    uint32_t usual = magnitude + (112u << 23);
    return float_of((half & 0x8000u) << 16 | (magnitude < 1u << 23 ? small : usual));
}
#endif

INLINE float NAME(put)(const p2p_f32 *x, uint8_t *out, int n)
{
    p2p_u16 *halves = (p2p_u16 *)out;
    uint32_t top = VARIANT_NAME(amax_bits)(x, n);
    if (top >= bits_of(FP16_OVERFLOW))
        return REFUSED;
    int i = 0;
    IN_LANES(i, n, LANE(put_halves)(halves + i, lane_get(x + i)));
    for (; i < n; i++)
        halves[i] = half_of(x[i]);
    return float_of_half(half_of(float_of(top)));
}

/* Infinities and NaNs have all exponent bits set. */
INLINE float NAME(peak)(const uint8_t *block, int n)
{
    const p2p_u16 *halves = (const p2p_u16 *)block;
    uint16_t top = 0;
    for (int i = 0; i < n; i++) {
        uint16_t magnitude = halves[i] & 0x7fffu;
        top = magnitude > top ? magnitude : top;
    }
    return top < 0x7c00u ? float_of_half(top) : REFUSED;
}

#define EACH_DELTA(block, n, DO)                                                                   \
    do {                                                                                           \
        const p2p_u16 *halves_ = (const p2p_u16 *)(block);                                         \
        int i = 0;                                                                                 \
        IN_LANES(i, n, lane_f delta = LANE(halves)(halves_ + i); DO(lane));                        \
        for (; i < (n); i++) {                                                                     \
            float delta = float_of_half(halves_[i]);                                               \
            DO(one);                                                                               \
        }                                                                                          \
    } while (0)
