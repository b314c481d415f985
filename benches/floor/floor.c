/* The floor: the least work that each conversion can be done with, in C, written for speed.
 *
 * What stands here is what every implementation has to do: read the attribute, fill one block, make the
 * capsule, keep the owner, give everything back, and stay alive whatever object comes. Names are interned and
 * compared by identity, ints and strs read in place (cpython.h), tuples filled without a format. No message, no
 * driver, no memory kept for the next call. With -DCHECKED=1 -DFLOOR=floor_checked the same code also refuses what
 * the product refuses (check.h); the difference of the two is what validation costs.
 *
 * `loop` calls anything through vectorcall, so that no interpreter loop is counted. What a producer's functions cost
 * by themselves is counted by `ask` and `ask_exchange`, which call them and drop the answer.
 */
#include "cpython.h"
#include "check.h"
#include <dlfcn.h>

#ifdef WITH_CALLGRIND
#include <valgrind/callgrind.h>
#else
#define CALLGRIND_ZERO_STATS
#define CALLGRIND_DUMP_STATS_AT(text) (void)(text)
#endif

#ifndef FLOOR
#define FLOOR floor
#endif
#define PASTE(left, right) left##right
#define INIT(name) PASTE(PyInit_, name)
#define TEXT_OF(name) #name
#define TEXT(name) TEXT_OF(name)

static const char NAME[] = "dltensor_versioned", USED[] = "used_dltensor_versioned";

static PyObject *s_device, *s_cai, *s_shape, *s_typestr, *s_data, *s_strides, *s_version, *s_stream, *s_dlpack;
static PyObject *s_exchange, *s_max_version, *s_device_id;
static PyObject *import_names, *our_version, *legacy_stream, *templates[DL_BOOL + 1][17];
static PyTypeObject ViewType;

/* The owner's end needs the GIL, so the block may be of CPython's allocator, which costs half of malloc and free. */
static void managed_end(Managed *managed)
{
    Py_DECREF((PyObject *)managed->context);
    PyObject_Free(managed);
}

COLD void managed_end_with_gil(Managed *managed)
{
    PyGILState_STATE state = PyGILState_Ensure();
    managed_end(managed);
    PyGILState_Release(state);
}

/* The deleter may be called on any thread: it takes the GIL where this thread does not hold it. */
static void managed_delete(Managed *managed)
{
    if (holds_gil()) managed_end(managed);
    else managed_end_with_gil(managed);
}

/* A consumer that has taken the tensor has renamed the capsule: one letter tells. */
static void capsule_destroy(PyObject *capsule)
{
    if (PyCapsule_GetName(capsule)[0] == USED[0]) return;
    Managed *managed = PyCapsule_GetPointer(capsule, NAME);
    if (managed->deleter) managed->deleter(managed);
}

INLINE Managed *managed_new(int64_t axes, PyObject *owner)
{
    Managed *managed = PyObject_Malloc(sizeof(Managed) + 2 * axes * sizeof(int64_t));
    if (!managed) return (Managed *)PyErr_NoMemory();
    managed->major = 1;
    managed->minor = 3;
    managed->context = Py_NewRef(owner);
    managed->deleter = managed_delete;
    return managed;
}

static PyObject *capsule_of(Managed *managed)
{
    if (!managed) return NULL;
    PyObject *capsule = PyCapsule_New(managed, NAME, capsule_destroy);
    if (!capsule) managed_end(managed);
    return capsule;
}

COLD void *refuse(void)
{
    if (!PyErr_Occurred()) PyErr_SetString(PyExc_BufferError, "not what the bench asks");
    return NULL;
}

/* Which of the names a keyword is: by identity, since the interpreter interns what is written in code. */
COLD PyObject *find_keyword(PyObject *name)
{
    PyObject *known[] = {s_stream, s_max_version, s_device_id};
    for (size_t at = 0; at < sizeof known / sizeof *known; at++)
        if (PyUnicode_Compare(name, known[at]) == 0) return known[at];
    return NULL;
}

typedef struct { int64_t stream, major, minor, device_id; } Request;

INLINE int read_request(Request *request, PyObject *const *values, PyObject *names)
{
    *request = (Request){-1, 0, 0, 0};
    Py_ssize_t count = names ? PyTuple_GET_SIZE(names) : 0;
    for (Py_ssize_t at = 0; at < count; at++) {
        PyObject *name = PyTuple_GET_ITEM(names, at), *value = values[at];
        if (name != s_stream && name != s_max_version && name != s_device_id) name = find_keyword(name);
        if (name == s_stream) {
            if (value != Py_None && !read_int(value, &request->stream)) return 0;
        } else if (name == s_max_version) {
            if (!read_pair(value, &request->major, &request->minor)) return 0;
        } else if (!name || !read_int(value, &request->device_id)) return 0;
    }
    REQUIRE(is_stream(request->stream) && request->minor >= 0);
    REQUIRE(request->device_id >= 0 && request->device_id <= INT32_MAX);
    return 1;
bad:
    return 0;
}

/* The values of a dict that describe an array, borrowed from it. */
typedef struct { PyObject *shape, *typestr, *data, *strides, *stream, *version; } Fields;

/* Returns the place of a key's value; NULL for another key. By identity first: keys that are written in code are interned. */
INLINE PyObject **place_of(Fields *fields, PyObject *key)
{
    return key == s_shape ? &fields->shape : key == s_typestr ? &fields->typestr : key == s_data ? &fields->data
        : key == s_strides ? &fields->strides : key == s_version ? &fields->version
        : key == s_stream ? &fields->stream : NULL;
}

COLD PyObject **find_place(Fields *fields, PyObject *key)
{
    PyObject *known[] = {s_shape, s_typestr, s_data, s_strides, s_version, s_stream};
    for (size_t at = 0; at < sizeof known / sizeof *known; at++)
        if (PyUnicode_Check(key) && PyUnicode_Compare(key, known[at]) == 0) return place_of(fields, known[at]);
    return NULL;
}

/* Goes through the dict: a step of PyDict_Next costs less than half of a lookup. */
INLINE int read_fields(PyObject *dict, Fields *fields)
{
    if (!PyDict_CheckExact(dict)) return 0;
    *fields = (Fields){0};
    PyObject *key, *value;
    Py_ssize_t position = 0;
    for (Py_ssize_t left = PyDict_GET_SIZE(dict); left > 0 && PyDict_Next(dict, &position, &key, &value); left--) {
        PyObject **place = place_of(fields, key);
        if (!place) place = find_place(fields, key);
        if (place) *place = value;
        REQUIRE(place); /* no mask, and nothing that a later version means */
    }
    if (!fields->shape || !fields->typestr || !fields->data || !PyTuple_CheckExact(fields->shape)) return 0;
    if (fields->strides == Py_None) fields->strides = NULL;
    if (fields->strides && (!PyTuple_CheckExact(fields->strides)
                            || PyTuple_GET_SIZE(fields->strides) != PyTuple_GET_SIZE(fields->shape))) return 0;
    int64_t version;
    REQUIRE(fields->version && read_int(fields->version, &version) && (uint64_t)version <= 3);
    REQUIRE(PyTuple_GET_SIZE(fields->shape) <= MAX_NDIM);
    return !fields->stream || fields->stream == Py_None; /* another stream has to be ordered by the driver */
bad:
    return 0;
}

/* Writes the array to a tensor whose numbers stand at `dims`. */
INLINE int fill(const Fields *fields, Tensor *tensor, int64_t *dims, uint64_t *flags, int32_t device_id)
{
    Py_ssize_t axes = PyTuple_GET_SIZE(fields->shape), length;
    const char *typestr = letters(fields->typestr, &length);
    if (!typestr || length < 3 || length > 4) return 0;
    int code = typestr[1] == 'f' ? DL_FLOAT : typestr[1] == 'i' ? DL_INT : typestr[1] == 'u' ? DL_UINT
        : typestr[1] == 'c' ? DL_COMPLEX : DL_BOOL;
    int64_t size = length == 3 ? typestr[2] - '0' : 16, address;
    REQUIRE(typestr[1] == "iuf  cb"[code] && (length == 3 || !memcmp(typestr + 2, "16", 2)));
    REQUIRE(is_native(typestr, code, size));
    PyObject *data = fields->data;
    if (!PyTuple_CheckExact(data) || PyTuple_GET_SIZE(data) != 2 || !read_int(PyTuple_GET_ITEM(data, 0), &address))
        return 0;
    *flags = PyTuple_GET_ITEM(data, 1) == Py_True;
    REQUIRE(address >= 0 && (*flags || PyTuple_GET_ITEM(data, 1) == Py_False));
    *tensor = (Tensor){(void *)address, {DL_CUDA, device_id}, (int32_t)axes, {(uint8_t)code, (uint8_t)(8 * size), 1},
                       dims, dims + axes, 0};
    for (Py_ssize_t axis = 0; axis < axes; axis++)
        if (!read_int(PyTuple_GET_ITEM(fields->shape, axis), dims + axis)) return 0;
    if (fields->strides) {
        int shift = __builtin_ctzll((uint64_t)size | 16); /* sizes are powers of two */
        for (Py_ssize_t axis = 0; axis < axes; axis++) {
            int64_t stride;
            if (!read_int(PyTuple_GET_ITEM(fields->strides, axis), &stride)) return 0;
            REQUIRE((stride & (size - 1)) == 0);
            tensor->strides[axis] = stride >> shift;
        }
    } else {
        uint64_t step = 1;
        for (Py_ssize_t axis = axes; axis-- > 0; step *= (uint64_t)dims[axis]) tensor->strides[axis] = (int64_t)step;
    }
    REQUIRE(is_sound(tensor, size));
    return 1;
bad:
    return 0;
}

/* Reads the attribute into a block of its own. */
INLINE Managed *managed_of(PyObject *object, int32_t device_id)
{
    PyObject *dict = PyObject_GetAttr(object, s_cai);
    if (!dict) return NULL;
    Fields fields;
    Managed *managed = NULL;
    if (!read_fields(dict, &fields)) goto bad;
    managed = managed_new(PyTuple_GET_SIZE(fields.shape), object);
    if (!managed) goto bad;
    if (!fill(&fields, &managed->tensor, (int64_t *)(managed + 1), &managed->flags, device_id)) goto bad;
    Py_DECREF(dict);
    return managed;
bad:
    Py_DECREF(dict);
    if (managed) managed_end(managed);
    return refuse();
}

/* to_dlpack(object, *, stream, max_version, device_id): a CAI object to a versioned capsule. */
static PyObject *floor_to_dlpack(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *names)
{
    (void)self;
    Request request;
    if (nargs != 1 || !read_request(&request, args + nargs, names) || request.major < 1) return refuse();
    return capsule_of(managed_of(args[0], (int32_t)request.device_id));
}

/* to_dlpack_bare(object): the same, where nothing is asked and the device is a constant. */
static PyObject *floor_to_dlpack_bare(PyObject *self, PyObject *object)
{
    (void)self;
    return capsule_of(managed_of(object, 0));
}

/* The view: a C type with both protocols. It owns a managed tensor, or holds the object whose array is written
 * behind it; in the same block. */
typedef struct { PyObject_HEAD Managed *managed; PyObject *owner; Tensor *tensor; uint64_t flags; } View;
typedef struct { View view; Tensor tensor; int64_t dims[]; } WholeView;

static void view_dealloc(View *self)
{
    if (!self->managed) Py_DECREF(self->owner);
    else if (self->managed->deleter) self->managed->deleter(self->managed);
    PyObject_Free(self);
}

/* Takes the tensor, also where it fails. */
INLINE PyObject *view_of(Managed *managed)
{
    View *view = PyObject_Malloc(sizeof(View));
    if (!view) {
        if (managed->deleter) managed->deleter(managed);
        return PyErr_NoMemory();
    }
    view->managed = managed;
    view->tensor = &managed->tensor;
    view->flags = managed->flags;
    return PyObject_Init((PyObject *)view, &ViewType);
}

static Managed *view_managed(View *self)
{
    Managed *managed = managed_new(0, (PyObject *)self);
    if (!managed) return NULL;
    managed->flags = self->flags;
    managed->tensor = *self->tensor; /* the extents and strides are those of the view, which it keeps alive */
    return managed;
}

static PyObject *view_dlpack(View *self, PyObject *const *args, Py_ssize_t nargs, PyObject *names)
{
    Request request;
    if (nargs || !read_request(&request, args, names) || request.major < 1) return refuse();
    return capsule_of(view_managed(self));
}

INLINE PyObject *pair_of(PyObject *first, PyObject *second)
{
    PyObject *pair = first && second ? PyTuple_New(2) : NULL;
    if (!pair) {
        Py_XDECREF(first);
        Py_XDECREF(second);
        return NULL;
    }
    PyTuple_SET_ITEM(pair, 0, first);
    PyTuple_SET_ITEM(pair, 1, second);
    return pair;
}

static PyObject *view_device(View *self, PyObject *ignored)
{
    (void)ignored;
    Device device = self->tensor->device;
    return pair_of(PyLong_FromLong(device.type), PyLong_FromLong(device.id));
}

INLINE int is_c_order(const Tensor *tensor)
{
    uint64_t step = 1, apart = 0;
    for (int axis = tensor->ndim; axis-- > 0; step *= (uint64_t)tensor->shape[axis])
        apart |= step ^ (uint64_t)tensor->strides[axis];
    return apart == 0;
}

INLINE int set_ints(PyObject *dict, PyObject *key, const int64_t *numbers, int count, int64_t size)
{
    PyObject *tuple = PyTuple_New(count);
    if (!tuple) return -1;
    for (int at = 0; at < count; at++) {
        PyObject *number = PyLong_FromLongLong(numbers[at] * size);
        if (!number) { Py_DECREF(tuple); return -1; }
        PyTuple_SET_ITEM(tuple, at, number);
    }
    int failed = PyDict_SetItem(dict, key, tuple);
    Py_DECREF(tuple);
    return failed;
}

/* The dict of a type, in which shape, data, strides and stream are None. */
COLD PyObject *make_template(DType dtype)
{
    char typestr[] = {dtype.bits == 8 ? '|' : '<', "iuf  cb"[dtype.code], (char)('0' + dtype.bits / 8), 0, 0};
    if (dtype.bits == 128) memcpy(typestr + 2, "16", 2);
    return Py_BuildValue("{OOOsOOOOOOOi}", s_shape, Py_None, s_typestr, typestr, s_data, Py_None, s_strides, Py_None,
                         s_stream, Py_None, s_version, 3);
}

/* A copy of the type's template, which costs less than as many insertions: shape, data and other strides set. */
static PyObject *view_cai(View *self, void *closure)
{
    (void)closure;
    Tensor *tensor = self->tensor;
    DType dtype = tensor->dtype;
    if (dtype.code > DL_BOOL || dtype.bits > 128 || dtype.bits & 7) return refuse();
    REQUIRE(tensor->device.type == DL_CUDA && allowed_sizes[dtype.code] >> (dtype.bits >> 3) & 1 && dtype.lanes == 1);
    PyObject **template = &templates[dtype.code][dtype.bits >> 3];
    if (!*template && !(*template = make_template(dtype))) return NULL;
    PyObject *dict = PyDict_Copy(*template);
    if (!dict) return NULL;
    PyObject *flag = self->flags & 1 ? Py_True : Py_False;
    PyObject *data = pair_of(PyLong_FromVoidPtr((char *)tensor->data + tensor->byte_offset), Py_NewRef(flag));
    if (!data || PyDict_SetItem(dict, s_data, data) || set_ints(dict, s_shape, tensor->shape, tensor->ndim, 1)
        || (!is_c_order(tensor) && set_ints(dict, s_strides, tensor->strides, tensor->ndim, dtype.bits >> 3)))
        Py_CLEAR(dict);
    Py_XDECREF(data);
    return dict;
bad:
    return refuse();
}

static PyMethodDef view_methods[] = {
    {"__dlpack__", (PyCFunction)(void (*)(void))view_dlpack, METH_FASTCALL | METH_KEYWORDS, NULL},
    {"__dlpack_device__", (PyCFunction)(void (*)(void))view_device, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL}};
static PyGetSetDef view_getset[] = {
    {"__cuda_array_interface__", (getter)(void (*)(void))view_cai, NULL, NULL, NULL}, {NULL, NULL, NULL, NULL, NULL}};
static PyTypeObject ViewType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = TEXT(FLOOR) ".View",
    .tp_basicsize = sizeof(View),
    .tp_dealloc = (destructor)view_dealloc,
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_methods = view_methods,
    .tp_getset = view_getset,
};

/* An object whose getter of the dict returns None: what reading the attribute costs. */
static PyObject *silent_cai(PyObject *self, void *closure)
{
    (void)self, (void)closure;
    Py_RETURN_NONE;
}
static PyGetSetDef silent_getset[] = {{"__cuda_array_interface__", silent_cai, NULL, NULL, NULL}, {NULL, NULL, NULL, NULL, NULL}};
static PyTypeObject SilentType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = TEXT(FLOOR) ".Silent",
    .tp_basicsize = sizeof(PyObject),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = PyType_GenericNew,
    .tp_getset = silent_getset,
};

/* A CAI object to a view: object, tensor and numbers in one block. */
INLINE PyObject *view_of_cai(PyObject *object, int device_type, int32_t device_id)
{
    PyObject *dict = PyObject_GetAttr(object, s_cai);
    if (!dict) return NULL;
    Fields fields;
    WholeView *whole = NULL;
    if (!read_fields(dict, &fields)) goto bad;
    whole = PyObject_Malloc(sizeof(WholeView) + 2 * PyTuple_GET_SIZE(fields.shape) * sizeof(int64_t));
    if (!whole) { PyErr_NoMemory(); goto bad; }
    if (!fill(&fields, &whole->tensor, whole->dims, &whole->view.flags, device_id)) goto bad;
    whole->tensor.device.type = device_type;
    whole->view.managed = NULL;
    whole->view.tensor = &whole->tensor;
    whole->view.owner = Py_NewRef(object);
    Py_DECREF(dict);
    return PyObject_Init((PyObject *)whole, &ViewType);
bad:
    PyObject_Free(whole);
    Py_DECREF(dict);
    return refuse();
}

/* view(object, *, device_id=0) */
static PyObject *floor_view(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *names)
{
    (void)self;
    Request request;
    if (nargs != 1 || !read_request(&request, args + nargs, names)) return refuse();
    return view_of_cai(args[0], DL_CUDA, (int32_t)request.device_id);
}

/* host_view(object): the same, said to be the CPU's, so that no driver is asked. */
static PyObject *floor_host_view(PyObject *self, PyObject *object)
{
    (void)self;
    return view_of_cai(object, DL_CPU, 0);
}

/* Calls __dlpack_device__, which decides what stream can be said, then __dlpack__. */
INLINE PyObject *ask(PyObject *object, Device *announced)
{
    PyObject *args[] = {object, Py_None, our_version};
    PyObject *device = PyObject_VectorcallMethod(s_device, args, 1, NULL);
    if (!device) return NULL;
    int64_t type, id;
    int is_pair = read_pair(device, &type, &id);
    Py_DECREF(device);
    if (!is_pair) return refuse();
    *announced = (Device){(int32_t)type, (int32_t)id};
    if (type == DL_CUDA) args[1] = legacy_stream;
    return PyObject_VectorcallMethod(s_dlpack, args, 1, import_names);
}

/* A capsule's fields, in each CPython; compared with what its functions return when the module is made. */
typedef struct { PyObject_HEAD void *pointer; const char *name; } Capsule;

/* Takes the tensor of a capsule as a consumer does, and deletes it, without a call: what is counted is the producer's. */
INLINE int consume(PyObject *object)
{
    if (!PyCapsule_CheckExact(object)) return 0;
    Capsule *capsule = (Capsule *)object;
    Managed *managed = capsule->pointer;
    capsule->name = USED;
    if (managed->deleter) managed->deleter(managed);
    return 1;
}

/* ask(object): what the producer's functions cost in an import by `__dlpack__`, with the end of what they make. */
static PyObject *floor_ask(PyObject *self, PyObject *object)
{
    (void)self;
    Device announced = {0, 0};
    PyObject *capsule = ask(object, &announced);
    if (!capsule) return NULL;
    int is_capsule = consume(capsule);
    Py_DECREF(capsule);
    return is_capsule ? Py_NewRef(Py_None) : refuse();
}

/* from_dlpack(object): by `__dlpack__`. */
static PyObject *floor_from_dlpack(PyObject *self, PyObject *object)
{
    (void)self;
    Device announced = {0, 0};
    PyObject *capsule = ask(object, &announced);
    if (!capsule) return NULL;
    Managed *managed = PyCapsule_GetPointer(capsule, NAME);
    if (!managed || managed->major != 1) goto bad;
    REQUIRE(is_sound_import(managed, announced));
    if (PyCapsule_SetName(capsule, USED)) goto bad;
    Py_DECREF(capsule);
    return view_of(managed);
bad:
    Py_DECREF(capsule);
    return refuse();
}

/* The C Exchange API, up to what is called here. */
typedef struct {
    uint32_t major, minor; void *previous;
    void *allocator; int (*managed_from)(void *, Managed **); void *to_object, *tensor_from;
    int (*work_stream)(int, int32_t, void **);
} Exchange;

/* Returns the table of the object's type, remembered for one type. */
INLINE Exchange *table_of(PyObject *object)
{
    static PyTypeObject *cached_type;
    static Exchange *cached;
    if (Py_TYPE(object) == cached_type) return cached;
    PyObject *capsule = PyObject_GetAttr((PyObject *)Py_TYPE(object), s_exchange);
    if (!capsule) return NULL;
    Exchange *table = PyCapsule_GetPointer(capsule, "dlpack_exchange_api");
    Py_DECREF(capsule);
    if (!table || table->major != 1) return refuse();
    cached_type = (PyTypeObject *)Py_NewRef(Py_TYPE(object));
    return cached = table;
}

/* Calls the producer's functions: the tensor, and the stream that it is ready on. */
INLINE Managed *ask_table(Exchange *table, PyObject *object)
{
    Managed *managed;
    void *stream;
    if (table->managed_from(object, &managed)) return refuse();
    Device device = managed->tensor.device;
    if (device.type != DL_CPU && table->work_stream(device.type, device.id, &stream)) {
        if (managed->deleter) managed->deleter(managed);
        return refuse();
    }
    return managed;
}

/* ask_exchange(object): what the functions of the table cost, with the end of what they make. */
static PyObject *floor_ask_exchange(PyObject *self, PyObject *object)
{
    (void)self;
    Exchange *table = table_of(object);
    Managed *managed = table ? ask_table(table, object) : NULL;
    if (!managed) return NULL;
    if (managed->deleter) managed->deleter(managed);
    Py_RETURN_NONE;
}

/* from_exchange(object): through the table. */
static PyObject *floor_from_exchange(PyObject *self, PyObject *object)
{
    (void)self;
    Exchange *table = table_of(object);
    Managed *managed = table ? ask_table(table, object) : NULL;
    if (!managed) return NULL;
    REQUIRE(managed->major == 1 && is_sound_import(managed, managed->tensor.device));
    return view_of(managed);
bad:
    if (managed->deleter) managed->deleter(managed);
    return refuse();
}

static int exchange_managed_from(void *object, Managed **out)
{
    *out = view_managed(object);
    return *out ? 0 : -1;
}
static int exchange_work_stream(int device_type, int32_t id, void **out)
{
    (void)device_type, (void)id;
    *out = NULL;
    return 0;
}
static Exchange our_exchange = {1, 3, NULL, NULL, exchange_managed_from, NULL, NULL, exchange_work_stream};

static PyObject *floor_nothing(PyObject *self, PyObject *ignored)
{
    (void)self, (void)ignored;
    Py_RETURN_NONE;
}
static PyObject *floor_attribute(PyObject *self, PyObject *object)
{
    (void)self;
    return PyObject_GetAttr(object, s_cai);
}

/* query(address): the one call of the driver that an import makes, for the attributes that it asks for. */
static PyObject *floor_query(PyObject *self, PyObject *address)
{
    (void)self;
    static unsigned (*ask)(unsigned, const unsigned *, void **, unsigned long long);
    static const unsigned attributes[] = {1, 2, 3, 4, 8, 9, 13};
    enum { COUNT = sizeof attributes / sizeof *attributes };
    uint64_t found[COUNT];
    void *places[COUNT];
    int64_t pointer;
    if (!ask) {
        void *driver = dlopen("libcuda.so.1", RTLD_NOW);
        *(void **)&ask = driver ? dlsym(driver, "cuPointerGetAttributes") : NULL;
    }
    if (!ask || !read_int(address, &pointer)) return refuse();
    for (int at = 0; at < COUNT; at++) places[at] = &found[at];
    if (ask(COUNT, attributes, places, (unsigned long long)pointer)) return refuse();
    Py_RETURN_NONE;
}

/* loop(callable, args, names, count, label, consume): calls, consumes capsules where asked, drops. */
static PyObject *floor_loop(PyObject *self, PyObject *args)
{
    (void)self;
    PyObject *callable, *arguments, *names;
    const char *label;
    long count;
    int consumes;
    if (!PyArg_ParseTuple(args, "OO!Olsp", &callable, &PyTuple_Type, &arguments, &names, &count, &label, &consumes))
        return NULL;
    PyObject **vector = ((PyTupleObject *)arguments)->ob_item;
    Py_ssize_t named = names == Py_None ? 0 : PyTuple_GET_SIZE(names);
    Py_ssize_t positional = PyTuple_GET_SIZE(arguments) - named;
    if (names == Py_None) names = NULL;
    CALLGRIND_ZERO_STATS;
    for (long at = 0; at < count; at++) {
        PyObject *result = PyObject_Vectorcall(callable, vector, (size_t)positional, names);
        if (!result) return NULL;
        int is_consumed = !consumes || consume(result);
        Py_DECREF(result);
        if (!is_consumed) return refuse();
    }
    CALLGRIND_DUMP_STATS_AT(label);
    Py_RETURN_NONE;
}

static PyMethodDef functions[] = {
    {"to_dlpack", (PyCFunction)(void (*)(void))floor_to_dlpack, METH_FASTCALL | METH_KEYWORDS, NULL},
    {"to_dlpack_bare", floor_to_dlpack_bare, METH_O, NULL},
    {"view", (PyCFunction)(void (*)(void))floor_view, METH_FASTCALL | METH_KEYWORDS, NULL},
    {"host_view", floor_host_view, METH_O, NULL},
    {"ask", floor_ask, METH_O, NULL},
    {"from_dlpack", floor_from_dlpack, METH_O, NULL},
    {"ask_exchange", floor_ask_exchange, METH_O, NULL},
    {"from_exchange", floor_from_exchange, METH_O, NULL},
    {"attribute", floor_attribute, METH_O, NULL},
    {"nothing", floor_nothing, METH_O, NULL},
    {"query", floor_query, METH_O, NULL},
    {"loop", floor_loop, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL}};
static struct PyModuleDef module = {.m_base = PyModuleDef_HEAD_INIT, .m_name = TEXT(FLOOR), .m_size = -1, .m_methods = functions};

PyMODINIT_FUNC INIT(FLOOR)(void)
{
    struct { PyObject **name; const char *text; } names[] = {
        {&s_device, "__dlpack_device__"}, {&s_cai, "__cuda_array_interface__"}, {&s_shape, "shape"},
        {&s_typestr, "typestr"}, {&s_data, "data"}, {&s_strides, "strides"}, {&s_version, "version"},
        {&s_stream, "stream"}, {&s_max_version, "max_version"}, {&s_device_id, "device_id"},
        {&s_dlpack, "__dlpack__"}, {&s_exchange, "__dlpack_c_exchange_api__"}};
    for (size_t at = 0; at < sizeof names / sizeof *names; at++)
        if (!(*names[at].name = PyUnicode_InternFromString(names[at].text))) return NULL;
    import_names = Py_BuildValue("(OO)", s_stream, s_max_version);
    our_version = Py_BuildValue("(ii)", 1, 3);
    legacy_stream = PyLong_FromLong(1);
    if (!import_names || !our_version || !legacy_stream || PyType_Ready(&ViewType) < 0 || PyType_Ready(&SilentType) < 0) return NULL;
    PyObject *capsule = PyCapsule_New(&our_exchange, "dlpack_exchange_api", NULL);
    if (!capsule || PyDict_SetItem(ViewType.tp_dict, s_exchange, capsule) < 0) return NULL;
    if (((Capsule *)capsule)->pointer != &our_exchange || ((Capsule *)capsule)->name != PyCapsule_GetName(capsule)) {
        PyErr_SetString(PyExc_SystemError, "capsules are laid out otherwise");
        return NULL;
    }
    PyObject *made = PyModule_Create(&module);
    if (made && (PyModule_AddObjectRef(made, "View", (PyObject *)&ViewType) < 0
                 || PyModule_AddObjectRef(made, "Silent", (PyObject *)&SilentType) < 0)) return NULL;
    return made;
}
