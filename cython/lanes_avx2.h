/* Eight lanes of AVX2, for code that compilers do not vectorise well. See codec_variant.h. */

#define LANES 8
#define LANE_INLINE                                                                                \
    static inline __attribute__((always_inline, target("avx2,f16c")))

LANE_INLINE __m256 get_avx2(const void *at)
{
    return _mm256_loadu_ps(at);
}

LANE_INLINE void put_avx2(void *at, __m256 x)
{
    _mm256_storeu_ps(at, x);
}

LANE_INLINE __m256i bits_avx2(__m256 x)
{
    return _mm256_castps_si256(x);
}

LANE_INLINE __m256i max_avx2(__m256i a, __m256i b)
{
    return _mm256_max_epi32(a, b);
}

LANE_INLINE __m256i magnitude_avx2(__m256 x)
{
    return _mm256_and_si256(_mm256_castps_si256(x), _mm256_set1_epi32(0x7fffffff));
}

LANE_INLINE int32_t top_avx2(__m256i x)
{
    __m128i four = _mm_max_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
    __m128i two = _mm_max_epi32(four, _mm_shuffle_epi32(four, 0x4e));
    return _mm_cvtsi128_si32(_mm_max_epi32(two, _mm_shuffle_epi32(two, 0xb1)));
}

LANE_INLINE __m256i bytes_avx2(const uint8_t *at)
{
    return _mm256_cvtepi8_epi32(_mm_loadl_epi64((const void *)at));
}

LANE_INLINE void put_bytes_avx2(uint8_t *at, __m256i x)
{
    __m256i lowest = _mm256_shuffle_epi8(x, _mm256_set1_epi32(0x0c080400));
    _mm_storel_epi64((void *)at, _mm_unpacklo_epi32(_mm256_castsi256_si128(lowest),
                                                    _mm256_extracti128_si256(lowest, 1)));
}

LANE_INLINE __m256 float_of_avx2(__m256i x)
{
    return _mm256_cvtepi32_ps(x);
}

/* Return the low or the high nibbles, sign-extended, of bytes that `bytes` has read. */
LANE_INLINE __m256i low_avx2(__m256i x)
{
    return _mm256_srai_epi32(_mm256_slli_epi32(x, 28), 28);
}

LANE_INLINE __m256i high_avx2(__m256i x)
{
    return _mm256_srai_epi32(x, 4);
}

LANE_INLINE __m256i pair_avx2(__m256i low, __m256i high)
{
    __m256i nibble = _mm256_set1_epi32(15);
    return _mm256_or_si256(_mm256_and_si256(low, nibble), _mm256_slli_epi32(high, 4));
}

LANE_INLINE __m256 halves_avx2(const p2p_u16 *at)
{
    return _mm256_cvtph_ps(_mm_loadu_si128((const void *)at));
}

LANE_INLINE void put_halves_avx2(p2p_u16 *at, __m256 x)
{
    _mm_storeu_si128((void *)at, _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
}

#undef LANE_INLINE
typedef __m256 lane_f_avx2;
typedef __m256i lane_i_avx2;
