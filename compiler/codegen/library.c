/* The C interface of a compiled model: its memory, its state in safetensors files, calls of its graphs. C99.
 *
 * What differs between models are the tables, which compiler/codegen/library_tables.py writes.
 */
#include "onnxc.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ALIGNMENT = 64 };
enum { ARENA, STATE, CONST }; /* blocks of memory, see compiler/runtime/layout.py */

/* An array and where it lies. States also have the name, its length, and the dtype that stand in a safetensors file. */
struct slot {
    onnxc_array array;
    int block;
    size_t offset;
    const char *file_name;
    size_t name_length;
    const char *file_dtype;
};

struct group {
    const struct slot *slots;
    size_t count;
    int graph;
};

/* A graph's code works on a table of words, each a number (block -1) or an address in a block. */
struct graph {
    void (*run)(int64_t table, int64_t thread, int64_t threads);
    const unsigned char *constants;
    size_t arena_bytes;
    size_t words;
    const signed char *blocks;
    const int64_t *values;
    size_t status;     /* offset in the arena: after a refused run, the number of a message of this graph, from 1 */
    int first_message; /* where its messages begin among all */
};

/* An instruction set that the code uses: where CPUID tells of it, and which registers (XCR0) it needs. */
struct feature {
    const char *name;
    unsigned leaf, subleaf;
    int cpu_register; /* eax ebx ecx edx */
    int bit;
    unsigned registers;
};

/* --- tables ------------------------------------------------------------------------------------------------------ */

@TABLES@

static size_t aligned(size_t n) { return (n + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT; }

/* --- memory: this header, then the state, then arena and table of each graph ------------------------------------- */

struct onnxc_model {
    void *own; /* what onnxc_destroy frees, or NULL */
    unsigned char *state;
    unsigned char *arenas[GRAPHS];
    int64_t *tables[GRAPHS];
};

size_t onnxc_memory_bytes(void) {
    size_t n = ALIGNMENT + aligned(sizeof(onnxc_model)) + aligned(STATE_BYTES);
    for (int g = 0; g < GRAPHS; g++) n += aligned(graphs[g].arena_bytes) + aligned(8 * graphs[g].words);
    return n;
}

onnxc_model *onnxc_create(void *memory) {
    if (onnxc_unsupported() != NULL) return NULL;
    void *own = NULL;
    if (memory == NULL) memory = own = malloc(onnxc_memory_bytes());
    if (memory == NULL) return NULL;
    memset(memory, 0, onnxc_memory_bytes());
    unsigned char *at = (unsigned char *)memory + (ALIGNMENT - (uintptr_t)memory % ALIGNMENT) % ALIGNMENT;
    onnxc_model *m = (onnxc_model *)at;
    at += aligned(sizeof(onnxc_model));
    m->own = own;
    m->state = at;
    at += aligned(STATE_BYTES);
    for (int g = 0; g < GRAPHS; g++) {
        m->arenas[g] = at;
        at += aligned(graphs[g].arena_bytes);
        m->tables[g] = (int64_t *)at;
        at += aligned(8 * graphs[g].words);
        const int64_t bases[] = {(int64_t)(intptr_t)m->arenas[g], (int64_t)(intptr_t)m->state,
                                 (int64_t)(intptr_t)graphs[g].constants, (int64_t)(intptr_t)m->tables[g]};
        for (size_t i = 0; i < graphs[g].words; i++) {
            int block = graphs[g].blocks[i];
            m->tables[g][i] = graphs[g].values[i] + (block < 0 ? 0 : bases[block]);
        }
    }
    return m;
}

void onnxc_destroy(onnxc_model *model) {
    if (model != NULL) free(model->own);
}

/* --- arrays ------------------------------------------------------------------------------------------------------ */

size_t onnxc_count(onnxc_group group) {
    return (size_t)group < sizeof groups / sizeof groups[0] ? groups[group].count : 0;
}

const onnxc_array *onnxc_info(onnxc_group group, size_t i) {
    return i < onnxc_count(group) ? &groups[group].slots[i].array : NULL;
}

int onnxc_find(onnxc_group group, const char *name) {
    for (size_t i = 0; i < onnxc_count(group); i++)
        if (strcmp(groups[group].slots[i].array.name, name) == 0) return (int)i;
    return -1;
}

void *onnxc_data(onnxc_model *model, onnxc_group group, size_t i) {
    if (i >= onnxc_count(group)) return NULL;
    const struct slot *s = &groups[group].slots[i];
    if (s->block == STATE) return model->state + s->offset;
    if (s->block == CONST) return (void *)(uintptr_t)(graphs[groups[group].graph].constants + s->offset);
    return model->arenas[groups[group].graph] + s->offset;
}

/* --- running ----------------------------------------------------------------------------------------------------- */

static int run(onnxc_model *m, int graph) {
    int64_t *status = (int64_t *)(m->arenas[graph] + graphs[graph].status);
    *status = 0;
    graphs[graph].run((int64_t)(intptr_t)m->tables[graph], 0, 1);
    return *status == 0 ? ONNXC_OK : (int)*status + graphs[graph].first_message;
}

int onnxc_step(onnxc_model *model) { return run(model, STEP); }

#if ONNXC_HAS_INFER
int onnxc_infer(onnxc_model *model) { return run(model, INFER); }
#endif

static void set_state(onnxc_model *m, int state, int64_t value) {
    if (state >= 0) memcpy(onnxc_data(m, ONNXC_STATES, (size_t)state), &value, sizeof value);
}

int onnxc_initialize(onnxc_model *model, int64_t seed) {
    set_state(model, SEED_STATE, seed);
    set_state(model, STEP_STATE, 0);
    return INITIALIZE < 0 ? ONNXC_OK : run(model, INITIALIZE < 0 ? 0 : INITIALIZE);
}

const char *onnxc_message(int code) {
    switch (code) {
        case ONNXC_OK: return "ok";
        case ONNXC_E_OPEN: return "the file cannot be opened or created";
        case ONNXC_E_FORMAT: return "the file is no safetensors file, or it is cut short";
        case ONNXC_E_OTHER: return "the file is the state of another model";
        case ONNXC_E_READ: return "reading the file failed";
        case ONNXC_E_WRITE: return "writing the file failed";
        case ONNXC_E_MEMORY: return "no memory";
    }
    return code > 0 && code <= MESSAGES ? messages[code - 1] : "unknown code";
}

static const void *code_address(void (*f)(int64_t, int64_t, int64_t)) {
    const void *p; /* C has no cast from a function to an object pointer; POSIX says that they are alike */
    memcpy(&p, &f, sizeof p);
    return p;
}

static int graph_of_role(int role) { return role == 0 ? STEP : role == 1 ? INFER : role == 2 ? INITIALIZE : -1; }

const void *onnxc_entry(int graph) {
    int g = graph_of_role(graph);
    return g < 0 ? NULL : code_address(graphs[g].run);
}

const void *onnxc_constants(int graph) {
    int g = graph_of_role(graph);
    return g < 0 ? NULL : graphs[g].constants;
}

const void *onnxc_pool(int which) {
    const void *p;
    void (*f)(int64_t) = POOL_RUN;
    memcpy(&p, &f, sizeof p);
    return which == 0 ? code_address(POOL_WORKER) : which == 1 ? p : NULL;
}

/* --- safetensors: 8 bytes of header size (little endian), a JSON header, the data --------------------------------- */

enum { MAX_HEADER = 100000000 };

struct text {
    char *at, *end;
};

static void skip_space(struct text *t) {
    while (t->at < t->end && (*t->at == ' ' || *t->at == '\t' || *t->at == '\n' || *t->at == '\r')) t->at++;
}

/* Whether the next character is c; if so, behind it. */
static int take(struct text *t, char c) {
    skip_space(t);
    if (t->at == t->end || *t->at != c) return 0;
    t->at++;
    return 1;
}

static int take_hex(struct text *t, unsigned *value) {
    *value = 0;
    for (int i = 0; i < 4; i++, t->at++) {
        char c = t->at < t->end ? *t->at : 0;
        int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
        if (digit < 0) return 0;
        *value = *value * 16 + (unsigned)digit;
    }
    return 1;
}

static char *put_utf8(char *to, unsigned u) {
    if (u < 0x80) {
        *to++ = (char)u;
        return to;
    }
    int more = u < 0x800 ? 1 : u < 0x10000 ? 2 : 3;
    static const unsigned char first[] = {0, 0xC0, 0xE0, 0xF0};
    *to++ = (char)(first[more] | (u >> (6 * more)));
    while (more-- > 0) *to++ = (char)(0x80 | ((u >> (6 * more)) & 0x3F));
    return to;
}

/* A string, decoded where it stands: an escape is never shorter than what it means. */
static int take_string(struct text *t, char **s, size_t *length) {
    if (!take(t, '"')) return 0;
    char *to = *s = t->at;
    while (t->at < t->end && *t->at != '"') {
        if (*t->at != '\\') {
            *to++ = *t->at++;
            continue;
        }
        if (t->end - t->at < 2) return 0;
        char c = t->at[1];
        t->at += 2;
        if (c == 'u') {
            unsigned u, low;
            if (!take_hex(t, &u)) return 0;
            if (u >= 0xD800 && u < 0xDC00) {
                if (t->end - t->at < 2 || t->at[0] != '\\' || t->at[1] != 'u') return 0;
                t->at += 2;
                if (!take_hex(t, &low) || low < 0xDC00 || low > 0xDFFF) return 0;
                u = 0x10000 + ((u - 0xD800) << 10) + (low - 0xDC00);
            }
            to = put_utf8(to, u);
            continue;
        }
        static const char escapes[] = "\"\\/bfnrt", meant[] = "\"\\/\b\f\n\r\t";
        const char *found = c == 0 ? NULL : strchr(escapes, c);
        if (found == NULL) return 0;
        *to++ = meant[found - escapes];
    }
    *length = (size_t)(to - *s);
    return take(t, '"');
}

static int take_number(struct text *t, uint64_t *n) {
    skip_space(t);
    if (t->at == t->end || *t->at < '0' || *t->at > '9') return 0;
    for (*n = 0; t->at < t->end && *t->at >= '0' && *t->at <= '9'; t->at++) {
        if (*n > UINT64_MAX / 10 - 1) return 0;
        *n = *n * 10 + (uint64_t)(*t->at - '0');
    }
    return 1;
}

static int is(const char *s, size_t length, const char *other) {
    return length == strlen(other) && memcmp(s, other, length) == 0;
}

/* One array of the header: whether it has the type of `s` (which may be NULL), and where its data are. */
static int take_tensor(struct text *t, const struct slot *s, int *fits, uint64_t *begin, uint64_t *end) {
    int have = 0;
    *fits = s != NULL;
    if (!take(t, '{')) return 0;
    do {
        char *key, *value;
        size_t length, n;
        uint64_t number;
        if (!take_string(t, &key, &length) || !take(t, ':')) return 0;
        if (is(key, length, "dtype")) {
            if (!take_string(t, &value, &n)) return 0;
            if (s != NULL && !is(value, n, s->file_dtype)) *fits = 0;
            have |= 1;
        } else if (is(key, length, "shape")) {
            size_t rank = 0;
            if (!take(t, '[')) return 0;
            if (!take(t, ']')) {
                do {
                    if (!take_number(t, &number)) return 0;
                    if (s != NULL && (rank >= s->array.rank || number != (uint64_t)s->array.shape[rank])) *fits = 0;
                    rank++;
                } while (take(t, ','));
                if (!take(t, ']')) return 0;
            }
            if (s != NULL && rank != s->array.rank) *fits = 0;
            have |= 2;
        } else if (is(key, length, "data_offsets")) {
            if (!take(t, '[') || !take_number(t, begin) || !take(t, ',') || !take_number(t, end) || !take(t, ']')) return 0;
            have |= 4;
        } else {
            return 0;
        }
    } while (take(t, ','));
    return have == 7 && take(t, '}');
}

static int take_metadata(struct text *t) {
    char *s;
    size_t length;
    if (!take(t, '{')) return 0;
    if (take(t, '}')) return 1;
    do
        if (!take_string(t, &s, &length) || !take(t, ':') || !take_string(t, &s, &length)) return 0;
    while (take(t, ','));
    return take(t, '}');
}

/* Where each state's data begin, or a code. begins: UINT64_MAX for each state. */
static int read_header(struct text t, uint64_t data_bytes, uint64_t *begins) {
    int other = 0;
    if (!take(&t, '{')) return ONNXC_E_FORMAT;
    if (!take(&t, '}')) {
        do {
            char *name;
            size_t length, i;
            uint64_t begin = 0, end = 0;
            int fits;
            if (!take_string(&t, &name, &length) || !take(&t, ':')) return ONNXC_E_FORMAT;
            if (is(name, length, "__metadata__")) {
                if (!take_metadata(&t)) return ONNXC_E_FORMAT;
                continue;
            }
            for (i = 0; i < STATES; i++)
                if (length == states[i].name_length && memcmp(name, states[i].file_name, length) == 0) break;
            const struct slot *s = i < STATES ? &states[i] : NULL;
            if (!take_tensor(&t, s, &fits, &begin, &end) || begin > end || end > data_bytes) return ONNXC_E_FORMAT;
            if (s != NULL && fits && end - begin != s->array.bytes) return ONNXC_E_FORMAT;
            if (s != NULL && begins[i] != UINT64_MAX) return ONNXC_E_FORMAT;
            if (s != NULL) begins[i] = begin;
            if (!fits) other = 1;
        } while (take(&t, ','));
        if (!take(&t, '}')) return ONNXC_E_FORMAT;
    }
    skip_space(&t);
    if (t.at != t.end) return ONNXC_E_FORMAT;
    for (size_t i = 0; i < STATES; i++)
        if (begins[i] == UINT64_MAX) other = 1;
    return other ? ONNXC_E_OTHER : ONNXC_OK;
}

static int load_from(onnxc_model *m, FILE *f, char **header, uint64_t *begins) {
    unsigned char size[8];
    uint64_t n = 0;
    if (fread(size, 1, 8, f) != 8) return ONNXC_E_FORMAT;
    for (int i = 0; i < 8; i++) n |= (uint64_t)size[i] << (8 * i);
    if (n > MAX_HEADER) return ONNXC_E_FORMAT;
    *header = malloc((size_t)n + 1);
    if (*header == NULL) return ONNXC_E_MEMORY;
    if (fread(*header, 1, (size_t)n, f) != n) return ONNXC_E_FORMAT;
    if (fseek(f, 0, SEEK_END) != 0) return ONNXC_E_READ;
    uint64_t data = 8 + n, whole = (uint64_t)ftell(f);
    struct text t = {*header, *header + n};
    for (size_t i = 0; i < STATES; i++) begins[i] = UINT64_MAX;
    int code = read_header(t, whole - data, begins);
    for (size_t i = 0; code == ONNXC_OK && i < STATES; i++) {
        size_t bytes = states[i].array.bytes;
        if (fseek(f, (long)(data + begins[i]), SEEK_SET) != 0) code = ONNXC_E_READ;
        if (code == ONNXC_OK && fread(m->state + states[i].offset, 1, bytes, f) != bytes) code = ONNXC_E_READ;
    }
    return code;
}

int onnxc_load(onnxc_model *model, const char *path) {
    char *header = NULL;
    uint64_t *begins = malloc((STATES + 1) * sizeof *begins);
    FILE *f = fopen(path, "rb");
    int code = begins == NULL ? ONNXC_E_MEMORY : f == NULL ? ONNXC_E_OPEN : load_from(model, f, &header, begins);
    if (f != NULL) fclose(f);
    free(header);
    free(begins);
    return code;
}

/* The header that Python wrote for this state, and the data in its order. */
static int save_to(const onnxc_model *m, FILE *f) {
    if (fwrite(file_header, 1, HEADER_BYTES, f) != HEADER_BYTES) return 0;
    for (size_t i = 0; i < STATES; i++) {
        const struct slot *s = &states[file_order[i]];
        if (fwrite(m->state + s->offset, 1, s->array.bytes, f) != s->array.bytes) return 0;
    }
    return fflush(f) == 0;
}

int onnxc_save(const onnxc_model *model, const char *path) {
    static const char suffix[] = ".part";
    size_t n = strlen(path);
    char *part = malloc(n + sizeof suffix);
    if (part == NULL) return ONNXC_E_MEMORY;
    memcpy(part, path, n);
    memcpy(part + n, suffix, sizeof suffix);
    int code = ONNXC_E_OPEN;
    FILE *f = fopen(part, "wb");
    if (f != NULL) {
        int written = save_to(model, f);
        written &= fclose(f) == 0;
        code = written && rename(part, path) == 0 ? ONNXC_OK : ONNXC_E_WRITE;
        if (code != ONNXC_OK) remove(part);
    }
    free(part);
    return code;
}

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
