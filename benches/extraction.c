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

static PyObject *s_device, *s_dlpack, *s_exchange, *names, *version;

static PyObject *delete_it(Managed *managed)
{
    if (managed->deleter) managed->deleter(managed);
    Py_RETURN_NONE;
}

/* dlpack(object): __dlpack_device__, then __dlpack__(max_version=(1, 3), stream=None). */
static PyObject *raw_dlpack(PyObject *self, PyObject *object)
{
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

static PyMethodDef functions[] = {
    {"dlpack", raw_dlpack, METH_O, NULL},
    {"exchange", raw_exchange, METH_O, NULL},
    {NULL}};
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "extraction_raw", NULL, -1, functions};

PyMODINIT_FUNC PyInit_extraction_raw(void)
{
    s_device = PyUnicode_InternFromString("__dlpack_device__");
    s_dlpack = PyUnicode_InternFromString("__dlpack__");
    s_exchange = PyUnicode_InternFromString("__dlpack_c_exchange_api__");
    names = Py_BuildValue("(ss)", "max_version", "stream");
    version = Py_BuildValue("(ii)", 1, 3);
    return PyModule_Create(&module);
}
