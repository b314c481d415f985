/* What the floor takes of CPython, version by version: ints and strs read in place, the GIL asked for by one load. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <string.h>

#if PY_VERSION_HEX < 0x030B0000
#include <longintrepr.h>
#endif
#if PY_VERSION_HEX < 0x030D0000
#define PyThreadState_GetUnchecked _PyThreadState_UncheckedGet
#endif

#define INLINE static inline __attribute__((always_inline))
#define COLD static __attribute__((cold, noinline))

/* Whether this thread holds the GIL. Before 3.12 the current thread state is the process's, not the thread's. */
INLINE int holds_gil(void)
{
    PyThreadState *current = PyThreadState_GetUnchecked();
#if PY_VERSION_HEX >= 0x030C0000
    return current != NULL;
#else
    return current && current == PyGILState_GetThisThreadState();
#endif
}

COLD int read_long_int(PyObject *object, int64_t *into)
{
    *into = PyLong_AsLongLong(object);
    if (*into != -1 || !PyErr_Occurred()) return 1;
    PyErr_Clear();
    return 0;
}

/* Reads an exact int: of one digit, or positive and of two, in place. False for anything else than an int of 64 bits:
 * without looking at the type the memory of another object would be read. */
INLINE int read_int(PyObject *object, int64_t *into)
{
    if (!PyLong_CheckExact(object)) return 0;
    PyLongObject *number = (PyLongObject *)object;
#if PY_VERSION_HEX >= 0x030C0000
    if (PyUnstable_Long_IsCompact(number)) {
        *into = PyUnstable_Long_CompactValue(number);
        return 1;
    }
    const digit *digits = number->long_value.ob_digit;
    int is_two = (number->long_value.lv_tag & ~(uintptr_t)4) == 2 << 3; /* a positive number of two digits */
#else
    Py_ssize_t size = Py_SIZE(number);
    const digit *digits = number->ob_digit;
    if ((size_t)(size + 1) <= 2) {
        *into = size * (int64_t)digits[0];
        return 1;
    }
    int is_two = size == 2;
#endif
    if (!is_two) return read_long_int(object, into);
    *into = (int64_t)digits[1] << PyLong_SHIFT | digits[0];
    return 1;
}

/* Reads an exact tuple of two ints. */
INLINE int read_pair(PyObject *object, int64_t *first, int64_t *second)
{
    return PyTuple_CheckExact(object) && PyTuple_GET_SIZE(object) == 2
        && read_int(PyTuple_GET_ITEM(object, 0), first) && read_int(PyTuple_GET_ITEM(object, 1), second);
}

/* Returns the letters of an exact ASCII str, of which there are `length`, with a NUL behind them; NULL for another. */
INLINE const char *letters(PyObject *object, Py_ssize_t *length)
{
    if (!PyUnicode_CheckExact(object) || !PyUnicode_IS_COMPACT_ASCII(object)) return NULL;
    *length = PyUnicode_GET_LENGTH(object);
    return (const char *)((PyASCIIObject *)object + 1);
}
