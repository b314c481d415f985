/* A C library that makes and takes DLPack tensors. It knows the protocol and nothing of Rust. */

#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>

/* DLPack 1.3, as far as it is used here. */
typedef struct { int32_t device_type, device_id; } Device;
typedef struct { uint8_t code, bits; uint16_t lanes; } DataType;
typedef struct {
    void *data;
    Device device;
    int32_t ndim;
    DataType dtype;
    int64_t *shape, *strides;
    uint64_t byte_offset;
} Tensor;
typedef struct Legacy {
    Tensor tensor;
    void *context;
    void (*deleter)(struct Legacy *);
} Legacy;
typedef struct Versioned {
    uint32_t major, minor;
    void *context;
    void (*deleter)(struct Versioned *);
    uint64_t flags;
    Tensor tensor;
} Versioned;

static int deleted;

int c_deleted(void) { return deleted; }

static void fill(Tensor *tensor, int64_t rows, int64_t columns) {
    float *data = malloc(sizeof(float) * rows * columns);
    for (int64_t i = 0; i < rows * columns; i++) data[i] = (float)i;
    tensor->data = data;
    tensor->device = (Device){1, 0};
    tensor->ndim = 2;
    tensor->dtype = (DataType){2, 32, 1};
    tensor->shape = malloc(sizeof(int64_t) * 4);
    tensor->shape[0] = rows;
    tensor->shape[1] = columns;
    tensor->strides = tensor->shape + 2;
    tensor->strides[0] = columns;
    tensor->strides[1] = 1;
    tensor->byte_offset = 0;
}

static void empty(Tensor *tensor) {
    free(tensor->data);
    free(tensor->shape);
    deleted++;
}

static void delete_versioned(Versioned *self) {
    empty(&self->tensor);
    free(self);
}

static void delete_legacy(Legacy *self) {
    empty(&self->tensor);
    free(self);
}

/* rows x columns float32 in C order, counting from 0. */
Versioned *c_make(int64_t rows, int64_t columns) {
    Versioned *self = calloc(1, sizeof *self);
    self->major = 1;
    self->minor = 3;
    self->deleter = delete_versioned;
    fill(&self->tensor, rows, columns);
    return self;
}

/* The same without strides, version and flags. */
Legacy *c_make_legacy(int64_t rows, int64_t columns) {
    Legacy *self = calloc(1, sizeof *self);
    self->deleter = delete_legacy;
    fill(&self->tensor, rows, columns);
    self->tensor.strides = NULL;
    return self;
}

/* One of another major version, whose fields mean nothing to us. */
Versioned *c_make_major(uint32_t major) {
    Versioned *self = c_make(1, 1);
    self->major = major;
    return self;
}

/* One with a negative number of axes. */
Versioned *c_make_ndim(int32_t ndim) {
    Versioned *self = c_make(1, 1);
    self->tensor.ndim = ndim;
    return self;
}

/* The sum of a matrix of float32, by its strides. */
double c_sum(const Versioned *self) {
    const Tensor *tensor = &self->tensor;
    const char *start = (const char *)tensor->data + tensor->byte_offset;
    double sum = 0;
    for (int64_t i = 0; i < tensor->shape[0]; i++)
        for (int64_t j = 0; j < tensor->shape[1]; j++)
            sum += ((const float *)start)[i * tensor->strides[0] + j * tensor->strides[1]];
    return sum;
}

void c_release(Versioned *self) { self->deleter(self); }

static void *release(void *self) {
    c_release(self);
    return NULL;
}

/* Calls the deleter on a thread that Rust has never seen. */
void c_release_on_thread(Versioned *self) {
    pthread_t thread;
    pthread_create(&thread, NULL, release, self);
    pthread_join(thread, NULL);
}
