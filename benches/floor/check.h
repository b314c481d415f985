/* What the checked floor refuses besides, by the same rules as the product, and with no message.
 *
 * floor.c is compiled twice. Where CHECKED is 0, every REQUIRE and the functions here cost nothing.
 */
#ifndef CHECKED
#define CHECKED 0
#endif

#define REQUIRE(condition) do { if (CHECKED && !(condition)) goto bad; } while (0)

enum { DL_INT = 0, DL_UINT = 1, DL_FLOAT = 2, DL_COMPLEX = 5, DL_BOOL = 6 };
enum { DL_CPU = 1, DL_CUDA = 2, DL_LAST_DEVICE = 18, MAX_NDIM = 64 };

typedef struct { int32_t type, id; } Device;
typedef struct { uint8_t code, bits; uint16_t lanes; } DType;
typedef struct {
    void *data; Device device; int32_t ndim; DType dtype; int64_t *shape, *strides; uint64_t byte_offset;
} Tensor;
typedef struct Managed {
    uint32_t major, minor; void *context; void (*deleter)(struct Managed *); uint64_t flags; Tensor tensor;
} Managed;

/* Bit n: a number of this type may have n bytes. */
static const uint32_t allowed_sizes[] = {
    [DL_INT] = 1 << 1 | 1 << 2 | 1 << 4 | 1 << 8, [DL_UINT] = 1 << 1 | 1 << 2 | 1 << 4 | 1 << 8,
    [DL_FLOAT] = 1 << 2 | 1 << 4 | 1 << 8, [DL_COMPLEX] = 1 << 8 | 1 << 16, [DL_BOOL] = 1 << 1,
};

/* Whether this machine reads such numbers: the byte order, the kind and the size are those of a type of DLPack. */
INLINE int is_native(const char *typestr, int code, int64_t size)
{
    int is_ordered = typestr[0] == '<' || (typestr[0] == '|' && size == 1);
    return is_ordered && (uint64_t)size <= 16 && allowed_sizes[code] >> size & 1;
}

/* Whether all elements lie in the address space, none of the products and sums overflows, and the address is aligned. */
INLINE int is_sound(const Tensor *tensor, int64_t size)
{
    int64_t count = 1, below = 0, above = 0, far;
    for (int axis = tensor->ndim; axis-- > 0;) {
        int64_t extent = tensor->shape[axis];
        if (extent < 0 || __builtin_mul_overflow(count, extent, &count)) return 0;
        if (extent == 0) continue;
        if (__builtin_mul_overflow(tensor->strides[axis], extent - 1, &far)) return 0;
        if (far < 0 ? __builtin_add_overflow(below, far, &below) : __builtin_add_overflow(above, far, &above)) return 0;
    }
    if (count == 0) return 1;
    uint64_t data = (uint64_t)tensor->data, first, last;
    if (__builtin_mul_overflow(count, size, &count) || __builtin_mul_overflow(below, size, &below)
        || __builtin_add_overflow(above, 1, &above) || __builtin_mul_overflow(above, size, &above)
        || __builtin_sub_overflow(above, below, &far)) return 0;
    if (__builtin_add_overflow(data, tensor->byte_offset, &data) || data == 0 || data & (uint64_t)(size - 1)) return 0;
    return !__builtin_add_overflow(data, below, &first) && !__builtin_add_overflow(data, above, &last);
}

/* Whether a foreign tensor is of a known device, of a type of DLPack with whole bytes, and sound. */
INLINE int is_sound_import(const Managed *managed, Device announced)
{
    const Tensor *tensor = &managed->tensor;
    DType dtype = tensor->dtype;
    if (tensor->device.type != announced.type || tensor->device.id != announced.id) return 0;
    if ((uint32_t)(tensor->device.type - 1) >= DL_LAST_DEVICE || tensor->device.id < 0) return 0;
    if ((uint32_t)tensor->ndim > MAX_NDIM || dtype.code > DL_BOOL || dtype.lanes != 1 || dtype.bits & 7) return 0;
    if (!(allowed_sizes[dtype.code] >> (dtype.bits >> 3) & 1)) return 0;
    return (tensor->ndim == 0 || (tensor->shape && tensor->strides)) && is_sound(tensor, dtype.bits >> 3);
}

/* Whether a stream of DLPack can be meant: none, no order (-1), or a stream's handle; 0 is ambiguous. */
INLINE int is_stream(int64_t stream) { return stream >= -1 && stream != 0; }
