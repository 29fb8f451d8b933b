/*
 * Trains the digits in C: no Python, no runtime; only the library that onnxc built, and the C library.
 *
 *     python examples/digits.py demo --npy
 *     onnxc build demo/digits.onnx demo/artifact --name digits --dim N=32
 *     cc -O2 -Idemo/artifact examples/digits.c -o demo/digits -Ldemo/artifact -ldigits -Wl,-rpath,demo/artifact
 *     demo/digits demo/artifact demo 15
 *
 * `examples/Makefile` does this. The last line that it prints is a checksum of all weights: Python gets the same bits.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "digits.h"

enum { BATCH = DIGITS_STEP_INPUT_labels_COUNT };
enum { PIXELS = DIGITS_STEP_INPUT_images_COUNT / BATCH };
enum { CLASSES = DIGITS_INFER_OUTPUT_logits_COUNT / BATCH };

static void fail(const char *what, const char *where) {
    fprintf(stderr, "error: %s: %s\n", where, what);
    exit(1);
}

static char *join(const char *folder, const char *file) {
    char *path = malloc(strlen(folder) + strlen(file) + 2);
    if (path == NULL) fail("no memory", file);
    sprintf(path, "%s/%s", folder, file);
    return path;
}

/* --- data -------------------------------------------------------------------------------------------------------- */

/* The elements of a .npy file (format version 1) with this dtype and `row` bytes in each row, and the number of rows. */
static void *read_npy(const char *folder, const char *file, const char *dtype, size_t row, size_t *rows) {
    char *path = join(folder, file);
    FILE *f = fopen(path, "rb");
    if (f == NULL) fail("cannot be opened; write it with digits.py --npy", path);
    unsigned char start[10];
    if (fread(start, 1, 10, f) != 10 || memcmp(start, "\x93NUMPY\x01", 7) != 0) fail("is no .npy file", path);
    size_t length = start[8] | (size_t)start[9] << 8;
    char *header = calloc(length + 1, 1);
    if (header == NULL || fread(header, 1, length, f) != length) fail("is cut short", path);
    if (strstr(header, dtype) == NULL || strstr(header, "'fortran_order': False") == NULL) fail("has another type", path);
    free(header);
    if (fseek(f, 0, SEEK_END) != 0) fail("cannot be read", path);
    size_t bytes = (size_t)ftell(f) - 10 - length;
    if (bytes == 0 || bytes % row != 0) fail("has another shape", path);
    void *data = malloc(bytes);
    if (data == NULL || fseek(f, (long)(10 + length), SEEK_SET) != 0 || fread(data, 1, bytes, f) != bytes)
        fail("cannot be read", path);
    fclose(f);
    free(path);
    *rows = bytes / row;
    return data;
}

typedef struct {
    float *images;
    int64_t *labels;
    size_t count;
} dataset;

static dataset read_dataset(const char *folder, const char *images, const char *labels) {
    dataset d;
    size_t count;
    d.images = read_npy(folder, images, "'<f4'", PIXELS * sizeof(float), &d.count);
    d.labels = read_npy(folder, labels, "'<i8'", sizeof(int64_t), &count);
    if (count != d.count) fail("has another number of rows than the images", labels);
    return d;
}

/* --- training ---------------------------------------------------------------------------------------------------- */

/* Random numbers: Marsaglia's xorshift generator with 64 bits (Journal of Statistical Software 8(14), 2003). */
static uint64_t next_random(uint64_t *x) {
    *x ^= *x << 13;
    *x ^= *x >> 7;
    *x ^= *x << 17;
    return *x;
}

static void shuffle(size_t *order, size_t n, uint64_t *random) {
    for (size_t i = n; i-- > 1;) {
        size_t j = (size_t)(next_random(random) % (i + 1)), other = order[j];
        order[j] = order[i];
        order[i] = other;
    }
}

/* One pass over the data; what does not fill a batch waits for another epoch's order. Gives the mean loss. */
static double train(digits_model *m, const dataset *d, const size_t *order) {
    double sum = 0;
    size_t batches = d->count / BATCH;
    for (size_t b = 0; b < batches; b++) {
        for (size_t i = 0; i < BATCH; i++) {
            size_t k = order[b * BATCH + i];
            memcpy(digits_step_input_images(m) + i * PIXELS, d->images + k * PIXELS, PIXELS * sizeof(float));
            digits_step_input_labels(m)[i] = d->labels[k];
        }
        int code = digits_step(m);
        if (code != DIGITS_OK) fail(digits_message(code), "step");
        sum += *digits_step_output_loss(m);
    }
    return batches > 0 ? sum / (double)batches : 0;
}

/* Share of the images whose largest logit is that of the label. The last batch is filled with blank images. */
static double accuracy(digits_model *m, const dataset *d) {
    size_t right = 0;
    for (size_t first = 0; first < d->count; first += BATCH) {
        size_t n = d->count - first < BATCH ? d->count - first : BATCH;
        memset(digits_infer_input_images(m), 0, DIGITS_INFER_INPUT_images_COUNT * sizeof(float));
        memcpy(digits_infer_input_images(m), d->images + first * PIXELS, n * PIXELS * sizeof(float));
        int code = digits_infer(m);
        if (code != DIGITS_OK) fail(digits_message(code), "inference");
        for (size_t i = 0; i < n; i++) {
            const float *logits = digits_infer_output_logits(m) + i * CLASSES;
            int64_t best = 0;
            for (int64_t c = 1; c < CLASSES; c++)
                if (logits[c] > logits[best]) best = c;
            right += best == d->labels[first + i];
        }
    }
    return (double)right / (double)d->count;
}

/* FNV-1a (Fowler, Noll, Vo) of the bytes of all state, in its order. */
static uint64_t checksum(digits_model *m) {
    uint64_t hash = UINT64_C(14695981039346656037);
    for (size_t i = 0; i < digits_count(DIGITS_STATES); i++) {
        const unsigned char *bytes = digits_data(m, DIGITS_STATES, i);
        for (size_t k = 0; k < digits_info(DIGITS_STATES, i)->bytes; k++) hash = (hash ^ bytes[k]) * UINT64_C(1099511628211);
    }
    return hash;
}

int main(int count, char **arguments) {
    if (count < 3) {
        fprintf(stderr, "usage: %s ARTIFACT DATA [EPOCHS [SEED]]\n", arguments[0]);
        return 2;
    }
    const char *folder = arguments[1], *data = arguments[2];
    int epochs = count > 3 ? atoi(arguments[3]) : 15;
    int64_t seed = count > 4 ? strtoll(arguments[4], NULL, 10) : 0;

    dataset training = read_dataset(data, "train_images.npy", "train_labels.npy");
    dataset test = read_dataset(data, "test_images.npy", "test_labels.npy");

    digits_model *m = digits_create(NULL);
    if (m == NULL) fail(digits_unsupported() ? digits_unsupported() : "no memory", "this CPU cannot run the library");
    char *weights = join(folder, "weights.safetensors"), *trained = join(data, "trained.safetensors");
    int code = digits_load(m, weights);
    if (code != DIGITS_OK) fail(digits_message(code), weights);
    code = digits_initialize(m, seed);
    if (code != DIGITS_OK) fail(digits_message(code), "initialization");
    printf("%zu bytes of memory, %zu arrays of state\n", digits_memory_bytes(), digits_count(DIGITS_STATES));

    size_t *order = malloc(training.count * sizeof *order);
    if (order == NULL) fail("no memory", "order");
    for (size_t i = 0; i < training.count; i++) order[i] = i;
    uint64_t random = UINT64_C(88172645463325252) + (uint64_t)seed;
    for (int e = 1; e <= epochs; e++) {
        shuffle(order, training.count, &random);
        double loss = train(m, &training, order);
        printf("epoch %2d: loss %.6f, test accuracy %.2f %%\n", e, loss, 100 * accuracy(m, &test));
    }

    code = digits_save(m, trained);
    if (code != DIGITS_OK) fail(digits_message(code), trained);
    printf("wrote %s; checksum %016" PRIx64 "\n", trained, checksum(m));
    digits_destroy(m);
    free(order);
    free(weights);
    free(trained);
    free(training.images);
    free(training.labels);
    free(test.images);
    free(test.labels);
    return 0;
}
