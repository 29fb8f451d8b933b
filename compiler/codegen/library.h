/*
 * @TITLE@
 *
 * Written by onnxc @VERSION@ for @TARGET@. C99 and C++; needs the C library only.
 *
 *     onnxc_model *m = onnxc_create(NULL);               // state is zero
 *     onnxc_load(m, "artifact/weights.safetensors");     // the model's initial values, or a checkpoint
 *     ... fill the arrays of ONNXC_STEP_INPUTS ...
 *     int code = onnxc_step(m);                          // 0, or a code for onnxc_message
 *     ... read the arrays of ONNXC_STEP_OUTPUTS ...
 *     onnxc_save(m, "run.safetensors");
 *     onnxc_destroy(m);
 *
 * Arrays are row-major and have fixed shapes. Write every input before each call: a call may use the memory of
 * inputs for other values. Outputs are for reading, and stay until the next call of the same graph. One model must
 * not be used by two threads at a time; different models are independent.
 */
#ifndef ONNXC_H
#define ONNXC_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define ONNXC_API_VERSION 1
#define ONNXC_HAS_INFER @HAS_INFER@ /* whether there is an inference graph beside the step */

/* All memory of one model. */
typedef struct onnxc_model onnxc_model;

/* What an array is. */
typedef struct onnxc_array {
    const char *name;     /* in the ONNX model; UTF-8 */
    const char *dtype;    /* "f32" "f64" "f16" "bf16" "i8" "i16" "i32" "i64" "u8" "u16" "u32" "u64" or "bool";
                             of a byte for each element: "f8e4m3fn" "f8e4m3fnuz" "f8e5m2" "f8e5m2fnuz" "f8e8m0" "f6e2m3"
                             "f6e3m2" "f4e2m1" (their codes), "i4" "u4" "i2" "u2" (integers in their range) */
    size_t count;         /* number of elements */
    size_t bytes;         /* their size together */
    size_t rank;          /* number of dims */
    const int64_t *shape; /* extents of the dims; not NULL */
} onnxc_array;

/* Groups of arrays; an array's index in its group is one of the constants below. */
typedef enum onnxc_group {
    ONNXC_STATES,
    ONNXC_STEP_INPUTS,
    ONNXC_STEP_OUTPUTS,
    ONNXC_INFER_INPUTS,
    ONNXC_INFER_OUTPUTS
} onnxc_group;

/* What functions below return: 0, one of these, or a positive code of a step that refused its inputs. */
enum {
    ONNXC_OK = 0,
    ONNXC_E_OPEN = -1,   /* a file cannot be opened or created */
    ONNXC_E_FORMAT = -2, /* a file is no safetensors file, or it is cut short */
    ONNXC_E_OTHER = -3,  /* a file has other arrays than the model's state */
    ONNXC_E_READ = -4,   /* reading failed; the state is partly overwritten */
    ONNXC_E_WRITE = -5,  /* writing failed; no file was replaced */
    ONNXC_E_MEMORY = -6  /* no memory */
};

/* NULL if this CPU can run the library, else the name of an instruction set that it lacks. */
const char *onnxc_unsupported(void);

/* Size of the memory that onnxc_create takes, for any address. */
size_t onnxc_memory_bytes(void);

/* A model in `memory` of onnxc_memory_bytes() bytes, which must live as long; NULL: in memory of its own. Every state
 * is zero. NULL if there is no memory, or this CPU cannot run the library. */
onnxc_model *onnxc_create(void *memory);

/* Free a model, unless its memory is the caller's. */
void onnxc_destroy(onnxc_model *model);

/* Number of arrays in a group; what the i-th is (NULL if there is none); index of the one with an ONNX name, or -1. */
size_t onnxc_count(onnxc_group group);
const onnxc_array *onnxc_info(onnxc_group group, size_t i);
int onnxc_find(onnxc_group group, const char *name);

/* The elements of the i-th array of a group, 64-byte aligned for inputs and states; NULL if there is none. */
void *onnxc_data(onnxc_model *model, onnxc_group group, size_t i);

/* Read all state from a safetensors file, or write it whole or not at all. Python's step.save and step.load read and
 * write the same files. ONNXC_OK or a negative code; but for ONNXC_E_READ, a failed load changes nothing. */
int onnxc_load(onnxc_model *model, const char *path);
int onnxc_save(const onnxc_model *model, const char *path);

/* Run one training step and update the state. ONNXC_OK, or a positive code for onnxc_message: an index in the inputs
 * was out of range; the state is then as it was. */
int onnxc_step(onnxc_model *model);

#if ONNXC_HAS_INFER
/* Run the inference graph on the current state; codes as for the step. */
int onnxc_infer(onnxc_model *model);
#endif

/* Run the model's initialization graph, if it has one, and begin the stream of random numbers anew; seed: of these
 * numbers, there and in later steps, not negative. */
int onnxc_initialize(onnxc_model *model, int64_t seed);

/* What a code means, in English; never NULL. */
const char *onnxc_message(int code);

/* For bindings of other languages (the Python loader uses these; the manifest has the memory layout that they need):
 * graph 0 is the step, 1 inference, 2 initialization; its code, void (*)(int64_t table, int64_t thread, int64_t
 * threads), and its constants; NULL if there is no such graph. The two functions of the worker pool. */
const void *onnxc_entry(int graph);
const void *onnxc_constants(int graph);
const void *onnxc_pool(int which);

@ARRAYS@
#ifdef __cplusplus
}
#endif

#endif
