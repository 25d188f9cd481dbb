/* A block is a scale in fp32, then a byte for each element. */

#define USUAL_BLOCK 256
#define BLOCK_BYTES(n) int8_bytes(n)
#ifndef P2P_INT8_ONCE
#define P2P_INT8_ONCE
static inline int64_t int8_bytes(int64_t n)
{
    return 4 + n;
}

#define INT8_SCALE_MIN 0x1p-107f /* <= P2P_AMAX_MIN / 127 */
#define INT8_SCALE_MAX 0x1p+94f  /* >= P2P_AMAX_MAX / 127 */

static inline float int8_scale(const uint8_t *block)
{
    float scale;
    memcpy(&scale, block, 4);
    return scale;
}
#endif

INLINE float NAME(put)(const p2p_f32 *x, uint8_t *out, int n)
{
    uint32_t top = VARIANT_NAME(amax_bits)(x, n);
    if (top > bits_of(P2P_AMAX_MAX))
        return REFUSED;
    float scale = 0.0f, inverse = 0.0f;
    if (top >= bits_of(P2P_AMAX_MIN)) {
        float amax = float_of(top);
        scale = amax / 127.0f;
        inverse = 127.0f / amax;
    }
    memcpy(out, &scale, 4);
    uint8_t *codes = out + 4;
    int i = 0;
    IN_LANES(i, n, LANE(put_bytes)(codes + i, LANE(bits)(lane_get(x + i) * inverse + ROUNDER)));
    for (; i < n; i++)
        codes[i] = (uint8_t)bits_of(x[i] * inverse + ROUNDER);
    return scale * 127.0f;
}

INLINE float NAME(peak)(const uint8_t *block, int n)
{
    (void)n;
    float scale = int8_scale(block);
    return within(scale, INT8_SCALE_MIN, INT8_SCALE_MAX) ? scale * 127.0f : REFUSED;
}

#define EACH_DELTA(block, n, DO)                                                                   \
    do {                                                                                           \
        float scale_ = int8_scale(block);                                                          \
        const uint8_t *codes_ = (block) + 4;                                                       \
        int i = 0;                                                                                 \
        IN_LANES(i, n, lane_f delta = LANE(float_of)(LANE(bytes)(codes_ + i)) * scale_; DO(lane)); \
        for (; i < (n); i++) {                                                                     \
            float delta = (float)(int8_t)codes_[i] * scale_;                                       \
            DO(one);                                                                               \
        }                                                                                          \
    } while (0)
