/* Sixteen lanes of AVX-512, for code that compilers do not vectorise well. See codec_variant.h. */

#define LANES 16
#define LANE_INLINE                                                                                \
    static inline __attribute__((always_inline, target("avx512f,avx512bw,avx512dq,avx512vl")))

LANE_INLINE __m512 get_avx512(const void *at)
{
    return _mm512_loadu_ps(at);
}

LANE_INLINE void put_avx512(void *at, __m512 x)
{
    _mm512_storeu_ps(at, x);
}

LANE_INLINE __m512i bits_avx512(__m512 x)
{
    return _mm512_castps_si512(x);
}

LANE_INLINE __m512i max_avx512(__m512i a, __m512i b)
{
    return _mm512_max_epi32(a, b);
}

LANE_INLINE __m512i magnitude_avx512(__m512 x)
{
    return _mm512_and_si512(_mm512_castps_si512(x), _mm512_set1_epi32(0x7fffffff));
}

LANE_INLINE int32_t top_avx512(__m512i x)
{
    return _mm512_reduce_max_epi32(x);
}

LANE_INLINE __m512i bytes_avx512(const uint8_t *at)
{
    return _mm512_cvtepi8_epi32(_mm_loadu_si128((const void *)at));
}

LANE_INLINE void put_bytes_avx512(uint8_t *at, __m512i x)
{
    _mm_storeu_si128((void *)at, _mm512_cvtepi32_epi8(x));
}

LANE_INLINE __m512 float_of_avx512(__m512i x)
{
    return _mm512_cvtepi32_ps(x);
}

/* Return the low or the high nibbles, sign-extended, of bytes that `bytes` has read. */
LANE_INLINE __m512i low_avx512(__m512i x)
{
    return _mm512_srai_epi32(_mm512_slli_epi32(x, 28), 28);
}

LANE_INLINE __m512i high_avx512(__m512i x)
{
    return _mm512_srai_epi32(x, 4);
}

LANE_INLINE __m512i pair_avx512(__m512i low, __m512i high)
{
    __m512i nibble = _mm512_set1_epi32(15);
    return _mm512_or_si512(_mm512_and_si512(low, nibble), _mm512_slli_epi32(high, 4));
}

LANE_INLINE __m512 halves_avx512(const p2p_u16 *at)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const void *)at));
}

LANE_INLINE void put_halves_avx512(p2p_u16 *at, __m512 x)
{
    _mm256_storeu_si256((void *)at, _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
}

#undef LANE_INLINE
typedef __m512 lane_f_avx512;
typedef __m512i lane_i_avx512;
