/* The kernel of sketches: 256 signed sums of a vector's elements (p2ptrain/kernels/sketches.py).
 *
 * The vector is cut into rows of 256 elements. The element x in column c of row r counts as
 * round-half-even(x * 2^-unit_exponent) units, with the sign and in the bucket that the seed gives:
 *
 *     word j of row r    number 5 r + j of splitmix64 from the seed, j = 0 .. 4
 *     sign               negative if bit c mod 64 of word c div 64 is set
 *     bucket             (c + the upper 8 bits of word 4) mod 256
 *
 * All sums are exact integers, so all variants, on all machines, give the same bits as
 * p2ptrain/kernels/sketch_reference.py. Elements need not be aligned. */
#ifndef SKETCH_IMPL_H
#define SKETCH_IMPL_H

#include <stdint.h>

#define P2P_SKETCH_WIDTH 256
#define P2P_ELEMENT_BITS 31 /* an element has at most 2^31 units */

typedef float p2p_f32 __attribute__((aligned(1), may_alias));

/* Add the elements from `first` on of a vector to `sums`. Return 0, or 1 if one of the elements is
 * not finite or has too many units; then `sums` is undefined. `first` must not be negative. */
typedef int (*p2p_sketch_kernel)(const p2p_f32 *x, int64_t numel, int64_t first, uint64_t seed,
                                 int unit_exponent, int64_t *sums);

/* Return the kernel or the name of a variant, or NULL if there is no such variant. The variants
 * that this machine can run are numbered, fastest first, as those of the codecs are. */
p2p_sketch_kernel p2p_sketch_kernel_of(int variant);
const char *p2p_sketch_variant_name(int variant);

#endif
