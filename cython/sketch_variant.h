/* The kernel for one variant. sketch_impl.c includes this file once for each variant, with KERNEL
 * (the function attributes) and VARIANT (the name) defined. So it has no include guard. */

/* Return whether all magnitudes are at most `limit`. As integers, magnitudes have the same order as
 * floats, with infinities and then NaNs above all others. */
static inline __attribute__((always_inline)) KERNEL int
    VARIANT_NAME(fit)(const p2p_f32 *x, int n, int32_t limit)
{
    int32_t top = 0;
    for (int i = 0; i < n; i++) {
        int32_t magnitude = (int32_t)(bits_of(x[i]) & 0x7fffffffu);
        top = magnitude > top ? magnitude : top;
    }
    return top <= limit;
}

/* Add n elements to as many buckets. Bit i of `signs` changes the sign of element i. */
static inline __attribute__((always_inline)) KERNEL void
    VARIANT_NAME(add_columns)(const p2p_f32 *restrict x, int n, uint64_t signs, double scale,
                              double *restrict buckets)
{
    for (int i = 0; i < n; i++) {
        double units = ((double)x[i] * scale + ROUNDER) - ROUNDER;
        buckets[i] += flipped(units, signs << (63 - i));
    }
}

/* Add the columns [from, to) of a row to the buckets. `x` is the element in column `from`. The
 * bucket of column c is c + the rotation, so there are 512 of them; `gather` adds the second half
 * to the first. */
static KERNEL void VARIANT_NAME(add_row)(const p2p_f32 *x, int from, int to, const uint64_t *words,
                                         double scale, double *buckets)
{
    double *turned = buckets + (words[4] >> 56);
    while (from < to) {
        int bit = from % 64, n = to - from < 64 - bit ? to - from : 64 - bit;
        if (n == 64) /* a constant length, so the loop has no tail */
            VARIANT_NAME(add_columns)(x, 64, words[from / 64], scale, turned + from);
        else
            VARIANT_NAME(add_columns)(x, n, words[from / 64] >> bit, scale, turned + from);
        x += n;
        from += n;
    }
}

static KERNEL int VARIANT_NAME(sketch)(const p2p_f32 *x, int64_t numel, int64_t first,
                                       uint64_t seed, int unit_exponent, int64_t *sums)
{
    double buckets[2 * P2P_SKETCH_WIDTH] = {0};
    double scale = ldexp(1.0, -unit_exponent);
    int32_t limit = limit_of(unit_exponent);
    int64_t row = first / P2P_SKETCH_WIDTH, rows = 0;
    int from = (int)(first % P2P_SKETCH_WIDTH);
    while (numel > 0) {
        int to = numel < P2P_SKETCH_WIDTH - from ? from + (int)numel : P2P_SKETCH_WIDTH;
        if (!VARIANT_NAME(fit)(x, to - from, limit))
            return 1;
        uint64_t words[5];
        words_of(seed, row, words);
        VARIANT_NAME(add_row)(x, from, to, words, scale, buckets);
        if (++rows == ROWS_MAX) {
            gather(buckets, sums);
            rows = 0;
        }
        x += to - from;
        numel -= to - from;
        row++;
        from = 0;
    }
    gather(buckets, sums);
    return 0;
}
