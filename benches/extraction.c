/* What taking an array costs at least: the producer's own call, the tensor claimed and deleted. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>

typedef struct Managed {
    uint32_t major, minor;
    void *context;
    void (*deleter)(struct Managed *);
} Managed;

typedef struct {
    uint32_t major, minor; void *previous;
    void *allocator; int (*managed_from)(void *, Managed **);
} Exchange;

static PyObject *s_device, *s_dlpack, *s_exchange, *s_sparse, *s_neg, *s_grad, *s_pinned, *names, *version;

static PyObject *delete_it(Managed *managed)
{
    if (managed->deleter) managed->deleter(managed);
    Py_RETURN_NONE;
}

/* dlpack(object): __dlpack_device__, then __dlpack__(max_version=(1, 3), stream=None). */
static PyObject *raw_dlpack(PyObject *self, PyObject *object)
{
    (void)self;
    PyObject *args[] = {object, version, Py_None};
    PyObject *device = PyObject_VectorcallMethod(s_device, args, 1, NULL);
    if (!device) return NULL;
    Py_DECREF(device);
    PyObject *capsule = PyObject_VectorcallMethod(s_dlpack, args, 1, names);
    if (!capsule) return NULL;
    Managed *managed = PyCapsule_GetPointer(capsule, "dltensor_versioned");
    if (!managed || PyCapsule_SetName(capsule, "used_dltensor_versioned")) return NULL;
    Py_DECREF(capsule);
    return delete_it(managed);
}

/* exchange(object): the table of the object's type, remembered for one type, then its export. */
static PyObject *raw_exchange(PyObject *self, PyObject *object)
{
    (void)self;
    static PyTypeObject *type;
    static Exchange *table;
    if (Py_TYPE(object) != type) {
        PyObject *capsule = PyObject_GetAttr((PyObject *)Py_TYPE(object), s_exchange);
        if (!capsule) return NULL;
        table = PyCapsule_GetPointer(capsule, "dlpack_exchange_api");
        Py_DECREF(capsule);
        if (!table) return NULL;
        type = (PyTypeObject *)Py_NewRef(Py_TYPE(object));
    }
    Managed *managed;
    if (table->managed_from(object, &managed)) return NULL;
    return delete_it(managed);
}

/* Whether an attribute, or what a method of this name returns, is false; -1 with an exception. */
static int is_false(PyObject *object, PyObject *name, int is_method)
{
    PyObject *value = is_method ? PyObject_VectorcallMethod(name, &object, 1, NULL) : PyObject_GetAttr(object, name);
    if (!value) return -1;
    Py_DECREF(value);
    return value == Py_False;
}

/* torch(object): the same for a tensor of the CPU and of floats: what the table's functions do not look at
 * (torch's own __dlpack__ does) is asked before they are believed. */
static PyObject *raw_torch(PyObject *self, PyObject *object)
{
    (void)self;
    if (is_false(object, s_sparse, 0) < 1 || is_false(object, s_neg, 1) < 1 || is_false(object, s_grad, 0) < 1
        || is_false(object, s_pinned, 1) < 1) {
        if (!PyErr_Occurred()) PyErr_SetString(PyExc_BufferError, "not a plain tensor");
        return NULL;
    }
    return raw_exchange(self, object);
}

static PyMethodDef functions[] = {
    {"dlpack", raw_dlpack, METH_O, NULL},
    {"exchange", raw_exchange, METH_O, NULL},
    {"torch", raw_torch, METH_O, NULL},
    {NULL, NULL, 0, NULL}};
static struct PyModuleDef module = {.m_base = PyModuleDef_HEAD_INIT, .m_name = "extraction_raw", .m_size = -1, .m_methods = functions};

PyMODINIT_FUNC PyInit_extraction_raw(void)
{
    s_device = PyUnicode_InternFromString("__dlpack_device__");
    s_dlpack = PyUnicode_InternFromString("__dlpack__");
    s_exchange = PyUnicode_InternFromString("__dlpack_c_exchange_api__");
    s_sparse = PyUnicode_InternFromString("is_sparse");
    s_neg = PyUnicode_InternFromString("is_neg");
    s_grad = PyUnicode_InternFromString("requires_grad");
    s_pinned = PyUnicode_InternFromString("is_pinned");
    names = Py_BuildValue("(ss)", "max_version", "stream");
    version = Py_BuildValue("(ii)", 1, 3);
    return PyModule_Create(&module);
}
