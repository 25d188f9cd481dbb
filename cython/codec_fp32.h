/* A payload is the values, unchanged. Blocks only determine where a vector can be split, and where
 * a fault is reported. */

#define USUAL_BLOCK 256
#define BLOCK_BYTES(n) fp32_bytes(n)
#ifndef P2P_FP32_ONCE
#define P2P_FP32_ONCE
static inline int64_t fp32_bytes(int64_t n)
{
    return 4 * n;
}
#endif

INLINE float NAME(put)(const p2p_f32 *x, uint8_t *out, int n)
{
    uint32_t top = VARIANT_NAME(amax_bits)(x, n);
    if (top > bits_of(P2P_AMAX_MAX))
        return REFUSED;
    p2p_f32 *values = (p2p_f32 *)out;
    for (int i = 0; i < n; i++)
        values[i] = x[i];
    return float_of(top);
}

INLINE float NAME(peak)(const uint8_t *block, int n)
{
    uint32_t top = VARIANT_NAME(amax_bits)((const p2p_f32 *)block, n);
    return top <= bits_of(P2P_AMAX_MAX) ? float_of(top) : REFUSED;
}

#define EACH_DELTA(block, n, DO)                                                                   \
    do {                                                                                           \
        const p2p_f32 *values_ = (const p2p_f32 *)(block);                                         \
        int i = 0;                                                                                 \
        IN_LANES(i, n, lane_f delta = lane_get(values_ + i); DO(lane));                            \
        for (; i < (n); i++) {                                                                     \
            float delta = values_[i];                                                              \
            DO(one);                                                                               \
        }                                                                                          \
    } while (0)
