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
