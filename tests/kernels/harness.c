/* Runs every kernel of every codec and variant on awkward sizes and values, in buffers of exactly the
 * required size. It is used in a build with sanitizers, and for processors without Python.
 *
 * Prints, for each variant, its name and a checksum of all outputs and faults. All checksums must be
 * equal. scripts/check_kernels builds and runs this program. */
#include "codec_impl.h"
#include "sketch_impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint64_t state, sum;

static uint64_t next(void)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state;
}

static void mix(const void *at, size_t size)
{
    const uint8_t *bytes = at;
    while (size--)
        sum = (sum ^ *bytes++) * 1099511628211ull;
}

/* Returns a value for a stretch of normal values, denormals, tiny values, zeros of both signs, or
 * random bits. */
static float awkward(int stretch)
{
    uint32_t bits = (uint32_t)next();
    static const uint32_t least[] = {110, 0, 1, 25, 112}, exponents[] = {20, 1, 10, 5, 30};
    if (stretch % 7 == 5)
        bits &= 0x80000000u;
    else if (stretch % 7 < 5)
        bits = (bits & 0x807fffffu) |
               (least[stretch % 7] + (bits >> 8) % exponents[stretch % 7]) << 23;
    float x;
    memcpy(&x, &bits, 4);
    return x;
}

/* Returns `size` bytes that start one byte after an aligned address and end with the allocation. */
static void *place(size_t size)
{
    uint8_t *at = malloc(size + 1);
    if (!at)
        abort();
    return at + 1;
}

static p2p_f32 *vector(int64_t numel, int finite)
{
    p2p_f32 *at = place(4 * (size_t)numel);
    for (int64_t i = 0; i < numel; i++)
        do {
            float x = awkward((int)(i / 50));
            memcpy(at + i, &x, 4);
        } while (finite && !(at[i] > -60000.0f && at[i] < 60000.0f));
    return at;
}

static void release(void *at)
{
    free((uint8_t *)at - 1);
}

static void tell(p2p_outcome outcome, const void *out, int64_t size)
{
    mix(&outcome.fault, sizeof outcome.fault);
    mix(&outcome.block, sizeof outcome.block);
    mix(&outcome.read, sizeof outcome.read);
    if (outcome.fault == P2P_FINE)
        mix(out, (size_t)size);
}

static void tell_sum(p2p_outcome outcome, p2p_share share, int64_t size, int64_t numel)
{
    mix(&outcome.made, sizeof outcome.made);
    tell(outcome, share.out, size);
    if (outcome.fault == P2P_FINE && share.residual_out)
        mix(share.residual_out, 4 * (size_t)numel);
}

static void sums(const p2p_kernels *kernels, p2p_share share, int64_t numel, int64_t block,
                 int64_t size)
{
    tell_sum(kernels->quantise_difference(share, numel, block), share, size, numel);
    for (int i = 0; i < 2; i++) {
        tell_sum(kernels->add_difference_requantise(share, numel, block), share, size, numel);
        p2p_outcome added = kernels->add_difference(share, numel, block);
        for (int64_t at = 0; at < numel; at++)
            if (share.sum[at] != share.sum[at])
                share.sum[at] = 7.0f; /* the bits of a NaN depend on the processor */
        tell(added, share.sum, 4 * numel);
        share.local = 0;
    }
}

static void all_kernels(const p2p_kernels *kernels, int codec, int64_t numel, int64_t block,
                        int finite)
{
    int64_t size = p2p_encoded_bytes(codec, numel, block), bytes = 4 * numel;
    p2p_f32 *theta = vector(numel, finite), *local = vector(numel, 1), *old = vector(numel, 1);
    p2p_f32 *kept = vector(numel, 1), *values = vector(numel, 1), *total = vector(numel, 1);
    uint8_t *payload = place((size_t)size), *out = place((size_t)size), *noise = place((size_t)size);
    memset(out, 0, (size_t)size);
    for (int64_t i = 0; i < size; i++)
        noise[i] = (uint8_t)next();

    tell(kernels->quantise(local, payload, numel, block), payload, size);
    tell(kernels->quantise(theta, out, numel, block), out, size);
    tell(kernels->dequantise(payload, values, numel, block), values, bytes);
    p2p_share share = {payload, theta, local, 0, 17.0f, 1.0f, out, 0, total};
    sums(kernels, share, numel, block, size);
    share.divisor = 40961.0f;
    share.residual = old;
    share.residual_out = kept;
    sums(kernels, share, numel, block, size);
    tell(kernels->outer_step(values, local, payload, 0.7f, 0.9f, numel, block), values, bytes);
    mix(local, (size_t)bytes);
    tell(kernels->check(payload, numel, block), payload, 0);
    tell(kernels->check(noise, numel, block), noise, 0);
    tell(kernels->outer_step(values, local, noise, 0.7f, 0.9f, numel, block), "", 0);

    p2p_f32 *vectors[] = {theta, local, old, kept, values, total};
    for (int i = 0; i < 6; i++)
        release(vectors[i]);
    release(payload);
    release(out);
    release(noise);
}

/* Sketches vectors whose elements fit the unit, and vectors of random bits. */
static void sketches(p2p_sketch_kernel kernel, int64_t numel, int finite)
{
    static const int64_t firsts[] = {0, 1, 63, 64, 255, 256, 1ll << 40};
    static const int exponents[] = {-149, -15, 0, 100};
    p2p_f32 *values = vector(numel, finite);
    for (size_t f = 0; f < sizeof firsts / sizeof *firsts; f++)
        for (size_t e = 0; e < sizeof exponents / sizeof *exponents; e++) {
            int64_t *sums = calloc(P2P_SKETCH_WIDTH, sizeof *sums);
            if (!sums)
                abort();
            int fault = kernel(values, numel, firsts[f], next(), exponents[e], sums);
            mix(&fault, sizeof fault);
            if (!fault)
                mix(sums, P2P_SKETCH_WIDTH * sizeof *sums);
            free(sums);
        }
    release(values);
}

int main(void)
{
    static const int64_t sizes[] = {0, 1, 7, 31, 32, 33, 255, 256, 257, 1000, 4095, 9001};
    static const int64_t blocks[] = {1, 7, 32, 64, 256, P2P_BLOCK_MAX};
    for (int variant = 0; p2p_variant_name(variant); variant++) {
        state = 88172645463325252ull;
        sum = 1469598103934665603ull;
        for (int codec = 0; codec < P2P_CODECS; codec++)
            for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
                for (size_t b = 0; b < sizeof blocks / sizeof *blocks; b++)
                    for (int finite = 0; finite < 2; finite++)
                        all_kernels(p2p_kernels_of(codec, variant), codec, sizes[s], blocks[b],
                                    finite);
        for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
            for (int finite = 0; finite < 2; finite++)
                sketches(p2p_sketch_kernel_of(variant), sizes[s], finite);
        printf("%s %016llx\n", p2p_variant_name(variant), (unsigned long long)sum);
    }
    return 0;
}
