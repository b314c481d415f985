/* The floor: the least work that each conversion can be done with, in C.
 *
 * No validation beyond what keeps the process alive, no error messages, no driver. What stands here
 * is what every implementation has to do: read the attribute, fill one block, make the capsule,
 * keep the owner, give everything back. `loop` and `loop_consume` call anything through vectorcall,
 * so that no interpreter loop is counted.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#ifdef WITH_CALLGRIND
#include <valgrind/callgrind.h>
#else
#define CALLGRIND_ZERO_STATS
#define CALLGRIND_DUMP_STATS_AT(text) (void)(text)
#endif

typedef struct { int32_t type, id; } Device;
typedef struct { uint8_t code, bits; uint16_t lanes; } DType;
typedef struct {
    void *data; Device device; int32_t ndim; DType dtype; int64_t *shape, *strides; uint64_t byte_offset;
} Tensor;
typedef struct Managed {
    uint32_t major, minor; void *context; void (*deleter)(struct Managed *); uint64_t flags; Tensor tensor;
} Managed;

static PyObject *s_device, *s_cai, *s_shape, *s_typestr, *s_data, *s_strides, *s_version, *s_stream, *s_dlpack, *s_exchange;
static PyObject *s_max_version, *s_device_id;
static PyObject *import_names, *our_version, *minus_one, *template_dict;
static PyTypeObject ViewType;

static void managed_delete(Managed *managed)
{
    PyGILState_STATE state = PyGILState_Ensure();
    Py_DECREF((PyObject *)managed->context);
    PyGILState_Release(state);
    free(managed);
}

static void capsule_destroy(PyObject *capsule)
{
    if (!PyCapsule_IsValid(capsule, "dltensor_versioned")) return;
    Managed *managed = PyCapsule_GetPointer(capsule, "dltensor_versioned");
    if (managed->deleter) managed->deleter(managed);
}

static Managed *managed_new(int ndim, PyObject *owner)
{
    Managed *managed = malloc(sizeof(Managed) + 2 * ndim * sizeof(int64_t));
    if (!managed) return NULL;
    Py_INCREF(owner);
    *managed = (Managed){1, 3, owner, managed_delete, 0, {0}};
    managed->tensor.ndim = ndim;
    managed->tensor.shape = (int64_t *)(managed + 1);
    managed->tensor.strides = managed->tensor.shape + ndim;
    return managed;
}

static Managed *managed_of(PyObject *object)
{
    PyObject *dict = PyObject_GetAttr(object, s_cai);
    if (!dict) return NULL;
    PyObject *shape = NULL, *typestr = NULL, *data = NULL, *strides = NULL, *stream = NULL, *key, *value;
    Py_ssize_t position = 0;
    while (PyDict_Next(dict, &position, &key, &value)) {
        if (key == s_shape) shape = value;
        else if (key == s_typestr) typestr = value;
        else if (key == s_data) data = value;
        else if (key == s_strides) strides = value;
        else if (key == s_stream) stream = value;
        else if (key != s_version) goto bad;
    }
    if (!shape || !typestr || !data || (stream && stream != Py_None)) goto bad;
    int ndim = (int)PyTuple_GET_SIZE(shape);
    Managed *managed = managed_new(ndim, object);
    if (!managed) { Py_DECREF(dict); PyErr_NoMemory(); return NULL; }
    Tensor *tensor = &managed->tensor;
    const char *text = PyUnicode_AsUTF8(typestr);
    int size = text[2] - '0';
    tensor->dtype = (DType){text[1] == 'f' ? 2 : text[1] == 'u' ? 1 : 0, (uint8_t)(8 * size), 1};
    tensor->data = PyLong_AsVoidPtr(PyTuple_GET_ITEM(data, 0));
    managed->flags = PyTuple_GET_ITEM(data, 1) == Py_True;
    tensor->device = (Device){2, 0};
    for (int axis = 0; axis < ndim; axis++) tensor->shape[axis] = PyLong_AsLongLong(PyTuple_GET_ITEM(shape, axis));
    if (strides && strides != Py_None) {
        for (int axis = 0; axis < ndim; axis++)
            tensor->strides[axis] = PyLong_AsLongLong(PyTuple_GET_ITEM(strides, axis)) / size;
    } else {
        int64_t step = 1;
        for (int axis = ndim; axis-- > 0; step *= tensor->shape[axis]) tensor->strides[axis] = step;
    }
    Py_DECREF(dict);
    return managed;
bad:
    Py_DECREF(dict);
    PyErr_SetString(PyExc_ValueError, "not the dict of the bench");
    return NULL;
}

/* to_dlpack(object, *, stream, max_version, device_id): a CAI object to a versioned capsule. */
static PyObject *floor_to_dlpack(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *names)
{
    Py_ssize_t count = names ? PyTuple_GET_SIZE(names) : 0;
    long stream = 1, major = 0, minor = 0, device_id = 0;
    for (Py_ssize_t at = 0; at < count; at++) {
        PyObject *name = PyTuple_GET_ITEM(names, at), *value = args[nargs + at];
        if (name == s_stream) stream = value == Py_None ? 1 : PyLong_AsLong(value);
        else if (name == s_max_version) {
            major = PyLong_AsLong(PyTuple_GET_ITEM(value, 0));
            minor = PyLong_AsLong(PyTuple_GET_ITEM(value, 1));
        } else if (name == s_device_id) device_id = PyLong_AsLong(value);
    }
    if (nargs != 1 || stream == 0 || major < 1 || minor < 0 || device_id < 0) {
        PyErr_SetString(PyExc_BufferError, "not asked by the bench");
        return NULL;
    }
    Managed *managed = managed_of(args[0]);
    if (!managed) return NULL;
    managed->tensor.device.id = (int32_t)device_id;
    return PyCapsule_New(managed, "dltensor_versioned", capsule_destroy);
}

/* to_dlpack_bare(object): the same, where nothing is asked and the device is a constant. */
static PyObject *floor_to_dlpack_bare(PyObject *self, PyObject *object)
{
    Managed *managed = managed_of(object);
    return managed ? PyCapsule_New(managed, "dltensor_versioned", capsule_destroy) : NULL;
}

/* The view: a C type with both protocols, which owns a managed tensor. */
typedef struct { PyObject_HEAD Managed *managed; PyObject *cached; } View;

static void view_dealloc(View *self)
{
    if (self->managed->deleter) self->managed->deleter(self->managed);
    Py_XDECREF(self->cached);
    PyObject_Free(self);
}

static PyObject *view_of(Managed *managed)
{
    View *view = PyObject_New(View, &ViewType);
    if (!view) return NULL;
    view->managed = managed;
    view->cached = NULL;
    return (PyObject *)view;
}

static Managed *view_managed(View *self)
{
    Tensor *from = &self->managed->tensor;
    Managed *managed = managed_new(from->ndim, (PyObject *)self);
    if (!managed) return NULL;
    int64_t *dims = managed->tensor.shape;
    managed->flags = self->managed->flags;
    managed->tensor.data = from->data;
    managed->tensor.device = from->device;
    managed->tensor.dtype = from->dtype;
    memcpy(dims, from->shape, from->ndim * sizeof(int64_t));
    memcpy(dims + from->ndim, from->strides, from->ndim * sizeof(int64_t));
    return managed;
}

static PyObject *view_dlpack(View *self, PyObject *const *args, Py_ssize_t nargs, PyObject *names)
{
    Py_ssize_t count = names ? PyTuple_GET_SIZE(names) : 0;
    long stream = 1, major = 0;
    for (Py_ssize_t at = 0; at < count; at++) {
        const char *name = PyUnicode_AsUTF8(PyTuple_GET_ITEM(names, at));
        PyObject *value = args[nargs + at];
        if (!strcmp(name, "stream")) stream = value == Py_None ? 1 : PyLong_AsLong(value);
        else if (!strcmp(name, "max_version")) major = PyLong_AsLong(PyTuple_GET_ITEM(value, 0));
    }
    if (stream == 0 || major < 1) { PyErr_SetString(PyExc_BufferError, "not asked by the bench"); return NULL; }
    Managed *managed = view_managed(self);
    return managed ? PyCapsule_New(managed, "dltensor_versioned", capsule_destroy) : PyErr_NoMemory();
}

static PyObject *view_device(View *self, PyObject *ignored)
{
    return Py_BuildValue("(ii)", self->managed->tensor.device.type, self->managed->tensor.device.id);
}

/* A dict from a template: shape, typestr, data and stream replaced. */
static PyObject *view_cai(View *self, void *closure)
{
    Tensor *tensor = &self->managed->tensor;
    PyObject *dict = PyDict_Copy(template_dict), *shape = PyTuple_New(tensor->ndim), *data = PyTuple_New(2);
    for (int axis = 0; axis < tensor->ndim; axis++)
        PyTuple_SET_ITEM(shape, axis, PyLong_FromLongLong(tensor->shape[axis]));
    PyTuple_SET_ITEM(data, 0, PyLong_FromVoidPtr(tensor->data));
    PyTuple_SET_ITEM(data, 1, PyBool_FromLong(self->managed->flags & 1));
    PyDict_SetItem(dict, s_shape, shape);
    PyDict_SetItem(dict, s_data, data);
    PyDict_SetItem(dict, s_stream, Py_None);
    Py_DECREF(shape);
    Py_DECREF(data);
    return dict;
}

static PyMethodDef view_methods[] = {
    {"__dlpack__", (PyCFunction)(void (*)(void))view_dlpack, METH_FASTCALL | METH_KEYWORDS, NULL},
    {"__dlpack_device__", (PyCFunction)view_device, METH_NOARGS, NULL},
    {NULL}};
static PyGetSetDef view_getset[] = {{"__cuda_array_interface__", (getter)view_cai, NULL, NULL, NULL}, {NULL}};
static PyTypeObject ViewType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "floor.View",
    .tp_basicsize = sizeof(View),
    .tp_dealloc = (destructor)view_dealloc,
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_methods = view_methods,
    .tp_getset = view_getset,
};

/* Takes the tensor out of a capsule. */
static Managed *claim(PyObject *capsule)
{
    Managed *managed = PyCapsule_GetPointer(capsule, "dltensor_versioned");
    if (managed && PyCapsule_SetName(capsule, "used_dltensor_versioned") != 0) return NULL;
    return managed;
}

/* view(object): a CAI object to a view. */
static PyObject *floor_view(PyObject *self, PyObject *object)
{
    Managed *managed = managed_of(object);
    return managed ? view_of(managed) : NULL;
}

/* host_view(object): the same, said to be the CPU's, so that nobody asks a driver. */
static PyObject *floor_host_view(PyObject *self, PyObject *object)
{
    Managed *managed = managed_of(object);
    if (!managed) return NULL;
    managed->tensor.device = (Device){1, 0};
    return view_of(managed);
}

/* from_dlpack(object): __dlpack_device__, which decides what stream can be said, then __dlpack__. */
static PyObject *floor_from_dlpack(PyObject *self, PyObject *object)
{
    PyObject *args[] = {object, our_version, minus_one};
    PyObject *device = PyObject_VectorcallMethod(s_device, args, 1, NULL);
    if (!device) return NULL;
    long type = PyLong_AsLong(PyTuple_GET_ITEM(device, 0)), id = PyLong_AsLong(PyTuple_GET_ITEM(device, 1));
    Py_DECREF(device);
    if (type < 0 || id < 0) return NULL;
    PyObject *capsule = PyObject_VectorcallMethod(s_dlpack, args, 1, import_names);
    if (!capsule) return NULL;
    Managed *managed = claim(capsule);
    Py_DECREF(capsule);
    return managed ? view_of(managed) : NULL;
}

/* from_exchange(object): through the C Exchange API, the table cached for one type. */
typedef struct {
    uint32_t major, minor; void *previous;
    void *allocator; int (*managed_from)(void *, Managed **); void *to_object, *tensor_from; int (*work_stream)(int, int32_t, void **);
} Exchange;

static PyObject *floor_from_exchange(PyObject *self, PyObject *object)
{
    static PyTypeObject *cached_type;
    static Exchange *cached;
    if (Py_TYPE(object) != cached_type) {
        PyObject *capsule = PyObject_GetAttr((PyObject *)Py_TYPE(object), s_exchange);
        if (!capsule) return NULL;
        cached = PyCapsule_GetPointer(capsule, "dlpack_exchange_api");
        Py_DECREF(capsule);
        if (!cached) return NULL;
        cached_type = (PyTypeObject *)Py_NewRef(Py_TYPE(object));
    }
    Managed *managed;
    void *stream;
    if (cached->managed_from(object, &managed) != 0) return NULL;
    if (cached->work_stream(managed->tensor.device.type, managed->tensor.device.id, &stream) != 0) return NULL;
    return view_of(managed);
}

static int exchange_managed_from(void *object, Managed **out)
{
    *out = view_managed(object);
    return *out ? 0 : -1;
}
static int exchange_work_stream(int device_type, int32_t id, void **out)
{
    *out = NULL;
    return 0;
}
static Exchange our_exchange = {1, 3, NULL, NULL, exchange_managed_from, NULL, NULL, exchange_work_stream};

static PyObject *floor_nothing(PyObject *self, PyObject *ignored) { Py_RETURN_NONE; }
static PyObject *floor_attribute(PyObject *self, PyObject *object) { return PyObject_GetAttr(object, s_cai); }

/* loop(callable, args, names, count, label, consume): calls, consumes capsules where asked, drops. */
static PyObject *floor_loop(PyObject *self, PyObject *args)
{
    PyObject *callable, *arguments, *names;
    const char *label;
    long count;
    int consume;
    if (!PyArg_ParseTuple(args, "OO!Olsp", &callable, &PyTuple_Type, &arguments, &names, &count, &label, &consume))
        return NULL;
    PyObject **vector = ((PyTupleObject *)arguments)->ob_item;
    Py_ssize_t named = names == Py_None ? 0 : PyTuple_GET_SIZE(names);
    Py_ssize_t positional = PyTuple_GET_SIZE(arguments) - named;
    if (names == Py_None) names = NULL;
    CALLGRIND_ZERO_STATS;
    for (long at = 0; at < count; at++) {
        PyObject *result = PyObject_Vectorcall(callable, vector, positional, names);
        if (!result) return NULL;
        if (consume) {
            Managed *managed = claim(result);
            if (!managed) { Py_DECREF(result); return NULL; }
            if (managed->deleter) managed->deleter(managed);
        }
        Py_DECREF(result);
    }
    CALLGRIND_DUMP_STATS_AT(label);
    Py_RETURN_NONE;
}

static PyMethodDef functions[] = {
    {"to_dlpack", (PyCFunction)(void (*)(void))floor_to_dlpack, METH_FASTCALL | METH_KEYWORDS, NULL},
    {"to_dlpack_bare", floor_to_dlpack_bare, METH_O, NULL},
    {"view", floor_view, METH_O, NULL},
    {"host_view", floor_host_view, METH_O, NULL},
    {"from_dlpack", floor_from_dlpack, METH_O, NULL},
    {"from_exchange", floor_from_exchange, METH_O, NULL},
    {"attribute", floor_attribute, METH_O, NULL},
    {"nothing", floor_nothing, METH_O, NULL},
    {"loop", floor_loop, METH_VARARGS, NULL},
    {NULL}};
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "floor", NULL, -1, functions};

PyMODINIT_FUNC PyInit_floor(void)
{
    s_device = PyUnicode_InternFromString("__dlpack_device__");
    s_cai = PyUnicode_InternFromString("__cuda_array_interface__");
    s_shape = PyUnicode_InternFromString("shape");
    s_typestr = PyUnicode_InternFromString("typestr");
    s_data = PyUnicode_InternFromString("data");
    s_strides = PyUnicode_InternFromString("strides");
    s_version = PyUnicode_InternFromString("version");
    s_stream = PyUnicode_InternFromString("stream");
    s_max_version = PyUnicode_InternFromString("max_version");
    s_device_id = PyUnicode_InternFromString("device_id");
    s_dlpack = PyUnicode_InternFromString("__dlpack__");
    s_exchange = PyUnicode_InternFromString("__dlpack_c_exchange_api__");
    import_names = Py_BuildValue("(ss)", "max_version", "stream");
    our_version = Py_BuildValue("(ii)", 1, 3);
    minus_one = PyLong_FromLong(-1);
    template_dict = Py_BuildValue("{OOOsOOOOOOOi}", s_shape, Py_None, s_typestr, "<f4", s_data, Py_None, s_strides,
                                  Py_None, s_stream, Py_None, s_version, 3);
    if (!template_dict || PyType_Ready(&ViewType) < 0) return NULL;
    PyObject *capsule = PyCapsule_New(&our_exchange, "dlpack_exchange_api", NULL);
    if (!capsule || PyDict_SetItem(ViewType.tp_dict, s_exchange, capsule) < 0) return NULL;
    PyObject *made = PyModule_Create(&module);
    if (made && PyModule_AddObjectRef(made, "View", (PyObject *)&ViewType) < 0) return NULL;
    return made;
}
