/* The variants of the kernels that this machine can run, the fastest first. */
#ifndef P2P_USABLE_VARIANTS_H
#define P2P_USABLE_VARIANTS_H

#if defined(__aarch64__)
#define BASELINE "neon" /* all aarch64 machines have NEON */
#else
#define BASELINE "baseline"
#endif

/* The instructions of each variant. `usable_variant` checks for the same ones. */
#define TARGET_AVX2 __attribute__((target("avx2,f16c")))
#define TARGET_AVX512                                                                              \
    __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,prefer-vector-width=512")))

enum variant_kind { VARIANT_NONE, VARIANT_BASELINE, VARIANT_AVX2, VARIANT_AVX512 };

/* Return the kind of variant number `variant`, or VARIANT_NONE if there is no such variant. */
static enum variant_kind usable_variant(int variant)
{
    enum variant_kind usable[3];
    int count = 0;
#if defined(__x86_64__) && defined(__GNUC__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
        usable[count++] = VARIANT_AVX512;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c"))
        usable[count++] = VARIANT_AVX2;
#endif
    usable[count++] = VARIANT_BASELINE;
    return variant >= 0 && variant < count ? usable[variant] : VARIANT_NONE;
}

/* Return the name of variant number `variant`, or NULL if there is no such variant. */
static const char *usable_variant_name(int variant)
{
    switch (usable_variant(variant)) {
    case VARIANT_AVX512:
        return "avx512";
    case VARIANT_AVX2:
        return "avx2";
    case VARIANT_BASELINE:
        return BASELINE;
    default:
        return 0;
    }
}

#endif
