/* The kernels themselves, in plain C that compilers vectorise. Included by int8_impl.c once for each
 * variant, with KERNEL (the function attributes) and NAME(x) defined: hence no include guard. */

#define INLINE static inline __attribute__((always_inline)) KERNEL

/* The bits of the largest magnitude. As integers, magnitudes order as they do as floats, with
 * infinities and then NaNs on top: one reduction finds the scale and everything not finite. */
INLINE uint32_t NAME(amax_bits)(const p2p_f32 *x, int n)
{
    int32_t top = 0;
    for (int i = 0; i < n; i++) {
        int32_t magnitude = (int32_t)(bits_of(x[i]) & 0x7fffffffu);
        top = magnitude > top ? magnitude : top;
    }
    return (uint32_t)top;
}

/* x into out[0..4+n); 0 if some x is not finite or too large. */
INLINE int NAME(put_block)(const p2p_f32 *x, uint8_t *out, int n)
{
    uint32_t top = NAME(amax_bits)(x, n);
    if (top > bits_of(P2P_AMAX_MAX))
        return 0;
    float scale = 0.0f, inverse = 0.0f;
    if (top >= bits_of(P2P_AMAX_MIN)) {
        float amax = float_of(top);
        scale = amax / 127.0f;
        inverse = 127.0f / amax;
    }
    memcpy(out, &scale, 4);
    uint8_t *codes = out + 4;
    for (int i = 0; i < n; i++) {
        float scaled = x[i] * inverse;
        codes[i] = (uint8_t)bits_of(scaled + ROUNDER);
    }
    return 1;
}

INLINE p2p_outcome NAME(quantise_blocks)(const p2p_f32 *src, uint8_t *out, int64_t blocks, int n,
                                         int64_t first)
{
    for (int64_t b = 0; b < blocks; b++)
        if (!NAME(put_block)(src + b * n, out + b * (n + 4), n))
            return (p2p_outcome){P2P_NOT_FINITE, first + b};
    return fine;
}

INLINE p2p_outcome NAME(dequantise_blocks)(const uint8_t *payload, p2p_f32 *out, int64_t blocks,
                                           int n, int64_t first)
{
    for (int64_t b = 0; b < blocks; b++) {
        const int8_t *codes = (const int8_t *)(payload + b * (n + 4) + 4);
        float scale = scale_at(payload + b * (n + 4));
        if (!scale_is_fine(scale))
            return (p2p_outcome){P2P_BAD_SCALE, first + b};
        p2p_f32 *to = out + b * n;
        for (int i = 0; i < n; i++)
            to[i] = (float)codes[i] * scale;
    }
    return fine;
}

INLINE p2p_outcome NAME(difference_blocks)(const p2p_f32 *theta, const p2p_f32 *local, float weight,
                                           uint8_t *out, int64_t blocks, int n, int64_t first)
{
    float sum[P2P_BLOCK_MAX];
    for (int64_t b = 0; b < blocks; b++) {
        const p2p_f32 *t = theta + b * n, *l = local + b * n;
        for (int i = 0; i < n; i++)
            sum[i] = weight * (t[i] - l[i]);
        if (!NAME(put_block)(sum, out + b * (n + 4), n))
            return (p2p_outcome){P2P_NOT_FINITE, first + b};
    }
    return fine;
}

INLINE p2p_outcome NAME(add_blocks)(const uint8_t *payload, const p2p_f32 *theta,
                                    const p2p_f32 *local, float weight, float divisor, int divides,
                                    uint8_t *out, int64_t blocks, int n, int64_t first)
{
    float sum[P2P_BLOCK_MAX];
    for (int64_t b = 0; b < blocks; b++) {
        const int8_t *codes = (const int8_t *)(payload + b * (n + 4) + 4);
        float scale = scale_at(payload + b * (n + 4));
        if (!scale_is_fine(scale))
            return (p2p_outcome){P2P_BAD_SCALE, first + b};
        const p2p_f32 *t = theta + b * n, *l = local + b * n;
        for (int i = 0; i < n; i++) {
            float own = weight * (t[i] - l[i]);
            float total = (float)codes[i] * scale + own;
            sum[i] = divides ? total / divisor : total;
        }
        if (!NAME(put_block)(sum, out + b * (n + 4), n))
            return (p2p_outcome){P2P_NOT_FINITE, first + b};
    }
    return fine;
}

INLINE void NAME(step_blocks)(p2p_f32 *restrict theta, p2p_f32 *restrict momentum,
                              const uint8_t *restrict payload, float lr, float mu, int64_t blocks,
                              int n)
{
    for (int64_t b = 0; b < blocks; b++) {
        const int8_t *codes = (const int8_t *)(payload + b * (n + 4) + 4);
        float scale = scale_at(payload + b * (n + 4));
        p2p_f32 *restrict t = theta + b * n, *restrict m = momentum + b * n;
        for (int i = 0; i < n; i++) {
            float delta = (float)codes[i] * scale;
            float moved = mu * m[i] + delta;
            m[i] = moved;
            t[i] = t[i] - lr * (delta + mu * moved);
        }
    }
}

/* Each entry below runs the whole blocks, with the usual block size as a constant so that the
 * compiler unrolls it, and then the shorter last one. `tail_at` is its first element. */
#define SPLIT(numel, block)                                                                        \
    int64_t whole = (numel) / (block), tail_at = whole * (block), tail_byte = whole * ((block) + 4); \
    int tail = (int)((numel) - tail_at)

#define WHOLE_THEN_TAIL(call_whole, call_tail)                                                     \
    p2p_outcome outcome = call_whole;                                                              \
    return outcome.fault || !tail ? outcome : call_tail

static KERNEL p2p_outcome NAME(quantise)(const p2p_f32 *src, uint8_t *out, int64_t numel,
                                         int64_t block)
{
    SPLIT(numel, block);
    WHOLE_THEN_TAIL(block == 256 ? NAME(quantise_blocks)(src, out, whole, 256, 0)
                                 : NAME(quantise_blocks)(src, out, whole, (int)block, 0),
                    NAME(quantise_blocks)(src + tail_at, out + tail_byte, 1, tail, whole));
}

static KERNEL p2p_outcome NAME(dequantise)(const uint8_t *payload, p2p_f32 *out, int64_t numel,
                                           int64_t block)
{
    SPLIT(numel, block);
    WHOLE_THEN_TAIL(block == 256 ? NAME(dequantise_blocks)(payload, out, whole, 256, 0)
                                 : NAME(dequantise_blocks)(payload, out, whole, (int)block, 0),
                    NAME(dequantise_blocks)(payload + tail_byte, out + tail_at, 1, tail, whole));
}

static KERNEL p2p_outcome NAME(quantise_difference)(const p2p_f32 *theta, const p2p_f32 *local,
                                                    float weight, uint8_t *out, int64_t numel,
                                                    int64_t block)
{
    SPLIT(numel, block);
    WHOLE_THEN_TAIL(
        block == 256 ? NAME(difference_blocks)(theta, local, weight, out, whole, 256, 0)
                     : NAME(difference_blocks)(theta, local, weight, out, whole, (int)block, 0),
        NAME(difference_blocks)(theta + tail_at, local + tail_at, weight, out + tail_byte, 1, tail,
                                whole));
}

/* Division by 1 changes no bit, so hops that do not divide skip it. */
#define ADD(p, t, l, o, blocks, n, first)                                                          \
    (divisor == 1.0f ? NAME(add_blocks)(p, t, l, weight, 1.0f, 0, o, blocks, n, first)             \
                     : NAME(add_blocks)(p, t, l, weight, divisor, 1, o, blocks, n, first))

static KERNEL p2p_outcome NAME(add_difference_requantise)(const uint8_t *payload,
                                                          const p2p_f32 *theta,
                                                          const p2p_f32 *local, float weight,
                                                          float divisor, uint8_t *out,
                                                          int64_t numel, int64_t block)
{
    SPLIT(numel, block);
    WHOLE_THEN_TAIL(block == 256 ? ADD(payload, theta, local, out, whole, 256, 0)
                                 : ADD(payload, theta, local, out, whole, (int)block, 0),
                    ADD(payload + tail_byte, theta + tail_at, local + tail_at, out + tail_byte, 1,
                        tail, whole));
}

#undef ADD

static KERNEL p2p_outcome NAME(outer_step)(p2p_f32 *theta, p2p_f32 *momentum,
                                           const uint8_t *payload, float lr, float mu,
                                           int64_t numel, int64_t block)
{
    p2p_outcome outcome = check_scales(payload, numel, block);
    if (outcome.fault)
        return outcome;
    SPLIT(numel, block);
    if (block == 256)
        NAME(step_blocks)(theta, momentum, payload, lr, mu, whole, 256);
    else
        NAME(step_blocks)(theta, momentum, payload, lr, mu, whole, (int)block);
    if (tail)
        NAME(step_blocks)(theta + tail_at, momentum + tail_at, payload + tail_byte, lr, mu, 1, tail);
    return fine;
}

static const p2p_int8_kernels NAME(kernels) = {
    NAME_TEXT,
    NAME(quantise),
    NAME(dequantise),
    NAME(quantise_difference),
    NAME(add_difference_requantise),
    NAME(outer_step),
    check_scales,
};

#undef WHOLE_THEN_TAIL
#undef SPLIT
#undef INLINE
