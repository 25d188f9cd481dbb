/* The kernels of one codec and variant, in plain C that compilers vectorise. See codec_variant.h.
 *
 * A function `..._blocks` processes blocks first..last-1 of a payload. Each of them has `n`
 * elements. Full blocks have `block` elements; n differs from `block` only for the last, shorter
 * block. */

INLINE p2p_outcome NAME(quantise_blocks)(const p2p_f32 *src, uint8_t *out, int64_t first,
                                         int64_t last, int block, int n)
{
    p2p_outcome outcome = fine;
    for (int64_t b = first; b < last; b++) {
        float made = NAME(put)(src + b * block, out + b * BLOCK_BYTES(block), n);
        if (made < 0.0f)
            return refused(P2P_NOT_FINITE, b);
        note(&outcome.made, made);
    }
    return outcome;
}

INLINE p2p_outcome NAME(dequantise_blocks)(const uint8_t *payload, p2p_f32 *out, int64_t first,
                                           int64_t last, int block, int n)
{
    for (int64_t b = first; b < last; b++) {
        const uint8_t *from = payload + b * BLOCK_BYTES(block);
        if (NAME(peak)(from, n) < 0.0f)
            return refused(P2P_BAD_SCALE, b);
        p2p_f32 *to = out + b * block;
#define STORE(L) L##_put(to + i, delta)
        EACH_DELTA(from, n, STORE);
#undef STORE
    }
    return fine;
}

/* residual_out = sum - divisor * deq(out), for one block. Returns 0 if a result is not finite. */
INLINE int NAME(keep_residual)(const float *sum, float divisor, const uint8_t *out,
                               p2p_f32 *residual_out, int n)
{
#define KEEP(L) L##_put(residual_out + i, L##_get(sum + i) - divisor * delta)
    EACH_DELTA(out, n, KEEP);
#undef KEEP
    return VARIANT_NAME(amax_bits)(residual_out, n) <= bits_of(P2P_AMAX_MAX);
}

/* Finish a sum: add the residual, divide, quantise, and store the new residual. Returns the peak or
 * REFUSED, as `put` does. Division by 1 does not change any bits, so it is skipped. */
INLINE float NAME(settle)(float *sum, const p2p_share *share, float divisor, int64_t at,
                          uint8_t *out, int n)
{
    float mean[P2P_BLOCK_MAX];
#define ADD_RESIDUAL(L) L##_put(sum + i, L##_get(sum + i) + L##_get(share->residual + at + i))
#define DIVIDE(L) L##_put(mean + i, L##_get(sum + i) / divisor)
    if (share->residual)
        EACH(n, ADD_RESIDUAL);
    if (divisor != 1.0f)
        EACH(n, DIVIDE);
#undef ADD_RESIDUAL
#undef DIVIDE
    float made = NAME(put)(divisor != 1.0f ? mean : sum, out, n);
    if (made < 0.0f || !share->residual_out)
        return made;
    return NAME(keep_residual)(sum, divisor, out, share->residual_out + at, n) ? made : REFUSED;
}

INLINE p2p_outcome NAME(difference_blocks)(const p2p_share *share, int64_t first, int64_t last,
                                           int block, int n)
{
    float sum[P2P_BLOCK_MAX], weight = share->weight;
    p2p_outcome outcome = fine;
    for (int64_t b = first; b < last; b++) {
        const p2p_f32 *t = share->theta + b * block, *l = share->local + b * block;
#define SUM(L) L##_put(sum + i, weight * (L##_get(t + i) - L##_get(l + i)))
        EACH(n, SUM);
#undef SUM
        uint8_t *to = share->out + b * BLOCK_BYTES(block);
        float made = NAME(settle)(sum, share, 1.0f, b * block, to, n);
        if (made < 0.0f)
            return refused(P2P_NOT_FINITE, b);
        note(&outcome.made, made);
    }
    return outcome;
}

/* sum = deq(from) + weight * (theta - local), for the block at element `at`. With `all` there is no
 * local, and nothing is subtracted from theta. `all` is a compile-time constant, because a branch
 * in the loop over blocks halved the speed. */
INLINE void NAME(add_own)(p2p_f32 *sum, const uint8_t *from, const p2p_share *share, int all,
                          int64_t at, int n)
{
    float weight = share->weight;
    const p2p_f32 *t = share->theta + at, *l = all ? t : share->local + at;
#define ADD_OWN(L)                                                                                 \
    L##_f own = L##_get(t + i);                                                                    \
    if (!all)                                                                                      \
        own = own - L##_get(l + i);                                                                \
    L##_put(sum + i, delta + weight * own)
    EACH_DELTA(from, n, ADD_OWN);
#undef ADD_OWN
}

INLINE p2p_outcome NAME(sum_blocks)(const p2p_share *share, int all, int64_t first, int64_t last,
                                    int block, int n)
{
    p2p_outcome outcome = fine;
    for (int64_t b = first; b < last; b++) {
        const uint8_t *from = share->payload + b * BLOCK_BYTES(block);
        float read = NAME(peak)(from, n);
        if (read < 0.0f)
            return refused(P2P_BAD_SCALE, b);
        note(&outcome.read, read);
        p2p_f32 *sum = share->sum + b * block;
        NAME(add_own)(sum, from, share, all, b * block, n);
#define ADD_RESIDUAL(L) L##_put(sum + i, L##_get(sum + i) + L##_get(share->residual + b * block + i))
        if (share->residual)
            EACH(n, ADD_RESIDUAL);
#undef ADD_RESIDUAL
    }
    return outcome;
}

INLINE p2p_outcome NAME(add_blocks)(const p2p_share *share, int all, int64_t first, int64_t last,
                                    int block, int n)
{
    float sum[P2P_BLOCK_MAX];
    p2p_outcome outcome = fine;
    for (int64_t b = first; b < last; b++) {
        const uint8_t *from = share->payload + b * BLOCK_BYTES(block);
        float read = NAME(peak)(from, n);
        if (read < 0.0f)
            return refused(P2P_BAD_SCALE, b);
        note(&outcome.read, read);
        NAME(add_own)((p2p_f32 *)sum, from, share, all, b * block, n);
        uint8_t *to = share->out + b * BLOCK_BYTES(block);
        float made = NAME(settle)(sum, share, share->divisor, b * block, to, n);
        if (made < 0.0f)
            return refused(P2P_NOT_FINITE, b);
        note(&outcome.made, made);
    }
    return outcome;
}

INLINE p2p_outcome NAME(step_blocks)(p2p_f32 *theta, p2p_f32 *momentum, const uint8_t *payload,
                                     float lr, float mu, int64_t first, int64_t last, int block,
                                     int n)
{
    for (int64_t b = first; b < last; b++) {
        const uint8_t *restrict from = payload + b * BLOCK_BYTES(block);
        p2p_f32 *restrict t = theta + b * block, *restrict m = momentum + b * block;
#define STEP(L)                                                                                    \
    L##_f moved = mu * L##_get(m + i) + delta;                                                     \
    L##_put(m + i, moved);                                                                         \
    L##_put(t + i, L##_get(t + i) - lr * (delta + mu * moved))
        EACH_DELTA(from, n, STEP);
#undef STEP
    }
    return fine;
}

INLINE p2p_outcome NAME(check_blocks)(const uint8_t *payload, int64_t first, int64_t last, int block,
                                      int n)
{
    p2p_outcome outcome = fine;
    for (int64_t b = first; b < last; b++) {
        float read = NAME(peak)(payload + b * BLOCK_BYTES(block), n);
        if (read < 0.0f)
            return refused(P2P_BAD_SCALE, b);
        note(&outcome.read, read);
    }
    return outcome;
}

/* Each kernel processes the full blocks, and then the shorter last block. For the usual block
 * length, the length is a constant, so that the compiler unrolls the loop and keeps a block in
 * registers. With residuals there are too many memory streams for that: unrolled loops were 40 %
 * slower. */
#define IN_BLOCKS(plain, of, ...)                                                                     \
    int64_t whole = numel / block;                                                                 \
    int tail = (int)(numel % block), length = (int)block;                                          \
    p2p_outcome outcome =                                                                          \
        block == USUAL_BLOCK && (plain)                                                            \
            ? NAME(of)(__VA_ARGS__, 0, whole, USUAL_BLOCK, USUAL_BLOCK)                            \
            : NAME(of)(__VA_ARGS__, 0, whole, length, length);                                     \
    return outcome.fault || !tail                                                                  \
               ? outcome                                                                           \
               : both(outcome, NAME(of)(__VA_ARGS__, whole, whole + 1, length, tail))

static KERNEL p2p_outcome NAME(quantise)(const p2p_f32 *src, uint8_t *out, int64_t numel,
                                         int64_t block)
{
    IN_BLOCKS(1, quantise_blocks, src, out);
}

static KERNEL p2p_outcome NAME(dequantise)(const uint8_t *payload, p2p_f32 *out, int64_t numel,
                                           int64_t block)
{
    IN_BLOCKS(1, dequantise_blocks, payload, out);
}

static KERNEL p2p_outcome NAME(quantise_difference)(p2p_share share, int64_t numel, int64_t block)
{
    IN_BLOCKS(!share.residual && !share.residual_out, difference_blocks, &share);
}

static KERNEL p2p_outcome NAME(add_difference)(p2p_share share, int64_t numel, int64_t block)
{
    if (share.local) {
        IN_BLOCKS(!share.residual, sum_blocks, &share, 0);
    } else {
        IN_BLOCKS(!share.residual, sum_blocks, &share, 1);
    }
}

static KERNEL p2p_outcome NAME(add_difference_requantise)(p2p_share share, int64_t numel,
                                                          int64_t block)
{
    if (share.local) {
        IN_BLOCKS(!share.residual && !share.residual_out, add_blocks, &share, 0);
    } else {
        IN_BLOCKS(!share.residual && !share.residual_out, add_blocks, &share, 1);
    }
}

static KERNEL p2p_outcome NAME(check)(const uint8_t *payload, int64_t numel, int64_t block)
{
    IN_BLOCKS(1, check_blocks, payload);
}

static KERNEL p2p_outcome NAME(outer_step)(p2p_f32 *theta, p2p_f32 *momentum,
                                           const uint8_t *payload, float lr, float mu,
                                           int64_t numel, int64_t block)
{
    p2p_outcome checked = NAME(check)(payload, numel, block);
    if (checked.fault)
        return checked;
    IN_BLOCKS(1, step_blocks, theta, momentum, payload, lr, mu);
}

static const p2p_kernels NAME(kernels) = {
    NAME(quantise),
    NAME(dequantise),
    NAME(quantise_difference),
    NAME(add_difference),
    NAME(add_difference_requantise),
    NAME(outer_step),
    NAME(check),
};

#undef IN_BLOCKS
#undef EACH_DELTA
#undef BLOCK_BYTES
#undef USUAL_BLOCK
#undef CODEC
