/* The C interface of a compiled model: its memory and calls of its graphs. C99.
 *
 * What differs between models are the tables, which compiler/codegen/library_tables.py writes; it puts library_state.c
 * (the state in files) and library_cpu.c (the CPUs that the code runs on) behind this file.
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
    size_t status;     /* offset in the arena: after a refused run n * ELEMENTS - i, message n of this graph, from 1 */
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
    return *status == 0 ? ONNXC_OK : (int)((*status + ELEMENTS - 1) / ELEMENTS) + graphs[graph].first_message;
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
