/* A block is a scale in bf16, then one byte for two elements: element i of the block's first half
 * in the low four bits, and element i of the second half in the high four bits. So packing and
 * unpacking do not need a shuffle. If the length is odd, the first half is longer by one, and the
 * high bits of its last byte are 0.
 *
 * A scale is rounded up, so that codes do not exceed 7. It changes by less than one part in 128,
 * far less than the error of rounding to 15 codes. */

#define USUAL_BLOCK 64
#define BLOCK_BYTES(n) int4_bytes(n)
#ifndef P2P_INT4_ONCE
#define P2P_INT4_ONCE
static inline int64_t int4_bytes(int64_t n)
{
    return 2 + (n + 1) / 2;
}

#define INT4_SCALE_MIN 0x1p-103f /* <= P2P_AMAX_MIN / 7 */
#define INT4_SCALE_MAX 0x1p+98f  /* >= P2P_AMAX_MAX / 7 */

static inline float int4_scale(const uint8_t *block)
{
    return float_of((uint32_t)block[0] << 16 | (uint32_t)block[1] << 24);
}
#endif

INLINE float NAME(put)(const p2p_f32 *x, uint8_t *out, int n)
{
    uint32_t top = VARIANT_NAME(amax_bits)(x, n);
    if (top > bits_of(P2P_AMAX_MAX))
        return REFUSED;
    uint32_t scale = 0;
    float inverse = 0.0f;
    if (top >= bits_of(P2P_AMAX_MIN)) {
        scale = (bits_of(float_of(top) / 7.0f) + 0xffffu) & 0xffff0000u;
        inverse = 1.0f / float_of(scale);
    }
    out[0] = (uint8_t)(scale >> 16);
    out[1] = (uint8_t)(scale >> 24);
    uint8_t *codes = out + 2;
    int half = (n + 1) / 2, i = 0;
    IN_LANES(i, n - half,
             LANE(put_bytes)(codes + i,
                             LANE(pair)(LANE(bits)(lane_get(x + i) * inverse + ROUNDER),
                                        LANE(bits)(lane_get(x + half + i) * inverse + ROUNDER))));
    for (; i < n - half; i++) {
        uint32_t low = bits_of(x[i] * inverse + ROUNDER) & 15u;
        uint32_t high = bits_of(x[half + i] * inverse + ROUNDER) & 15u;
        codes[i] = (uint8_t)(high << 4 | low);
    }
    if (n % 2)
        codes[half - 1] = (uint8_t)(bits_of(x[half - 1] * inverse + ROUNDER) & 15u);
    return float_of(scale) * 7.0f;
}

INLINE float NAME(peak)(const uint8_t *block, int n)
{
    (void)n;
    float scale = int4_scale(block);
    return within(scale, INT4_SCALE_MIN, INT4_SCALE_MAX) ? scale * 7.0f : REFUSED;
}

#define EACH_DELTA(block, n, DO)                                                                   \
    do {                                                                                           \
        float scale_ = int4_scale(block);                                                          \
        int half_ = ((n) + 1) / 2, i = 0;                                                          \
        const uint8_t *codes_ = (block) + 2;                                                       \
        IN_LANES(i, half_,                                                                         \
                 lane_f delta = LANE(float_of)(LANE(low)(LANE(bytes)(codes_ + i))) * scale_;       \
                 DO(lane));                                                                        \
        for (; i < half_; i++) {                                                                   \
            float delta = (float)((int32_t)((uint32_t)codes_[i] << 28) >> 28) * scale_;            \
            DO(one);                                                                               \
        }                                                                                          \
        codes_ -= half_;                                                                           \
        IN_LANES(i, n,                                                                             \
                 lane_f delta = LANE(float_of)(LANE(high)(LANE(bytes)(codes_ + i))) * scale_;      \
                 DO(lane));                                                                        \
        for (; i < (n); i++) {                                                                     \
            float delta = (float)((int8_t)codes_[i] >> 4) * scale_;                                \
            DO(one);                                                                               \
        }                                                                                          \
    } while (0)
