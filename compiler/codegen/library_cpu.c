/* --- the CPU ------------------------------------------------------------------------------------------------------ */

#if defined(__x86_64__)
#include <cpuid.h>

static int has(const struct feature *q) {
    unsigned r[4] = {0, 0, 0, 0};
    if (!__get_cpuid_count(q->leaf, q->subleaf, &r[0], &r[1], &r[2], &r[3])) return 0;
    return (int)(r[q->cpu_register] >> q->bit & 1);
}

/* Whether the operating system keeps these registers: bits of XCR0, which only a CPU with OSXSAVE has. */
static int keeps(unsigned registers) {
    static const struct feature osxsave = {"osxsave", 1, 0, 2, 27, 0};
    unsigned low, high;
    if (registers == 0) return 1;
    if (!has(&osxsave)) return 0;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (low & registers) == registers;
}

const char *onnxc_unsupported(void) {
    for (size_t i = 0; i < FEATURES; i++)
        if (!has(&features[i]) || !keeps(features[i].registers)) return features[i].name;
    return NULL;
}
#else
const char *onnxc_unsupported(void) { return NULL; }
#endif
