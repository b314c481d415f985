/* Threads that Python has never seen, and what they do with deleters and capsules.
 *
 * Python's functions are declared here, not included, so that no headers are needed: they are found in
 * the process that loads this.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <setjmp.h>
#include <stdint.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

extern int PyGILState_Ensure(void);
extern void PyGILState_Release(int);
extern void *PyObject_CallFunctionObjArgs(void *, ...);
extern void PyErr_Clear(void);
extern void PyErr_SetString(void *, const char *);
extern void *PyExc_RuntimeError;
extern void Py_DecRef(void *);
extern int Py_AddPendingCall(int (*)(void *), void *);

typedef void deleter(void *);

static int64_t now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1000000000LL + time.tv_nsec;
}

/* The address of a variable of this function. */
size_t stack(void) {
    volatile char here = 0;
    return (size_t)(uintptr_t)&here;
}

struct storm {
    deleter **deleters;
    void **tensors;
    int64_t *took;
    size_t begin, end;
};

static void *release_some(void *argument) {
    struct storm *storm = argument;
    for (size_t i = storm->begin; i < storm->end; i++) {
        int64_t start = now();
        storm->deleters[i](storm->tensors[i]);
        storm->took[i] = now() - start;
    }
    return NULL;
}

/* Calls every deleter on one of `threads` native threads and writes how many nanoseconds each call
 * took. The caller keeps the GIL, or not, as it loaded this. Returns after the last. */
int storm(deleter **deleters, void **tensors, int64_t *took, size_t count, size_t threads) {
    pthread_t ids[16];
    struct storm parts[16];
    for (size_t i = 0; i < threads; i++) {
        parts[i] = (struct storm){deleters, tensors, took, count * i / threads, count * (i + 1) / threads};
        if (pthread_create(&ids[i], NULL, release_some, &parts[i])) return -1;
    }
    for (size_t i = 0; i < threads; i++) pthread_join(ids[i], NULL);
    return 0;
}

/* Sits in C for a while; loaded by PyDLL, with the GIL. */
void sit(unsigned microseconds) { usleep(microseconds); }

/* Sits in C until another thread has set the flag, for a minute at most; loaded by CDLL. */
void sit_until(volatile int *flag) {
    for (int i = 0; i < 60000 && !*flag; i++) usleep(1000);
}

/* Makes a call that is refused each time; how often it was. Loaded by PyDLL. */
size_t refused(void *call, size_t count) {
    size_t times = 0;
    for (; times < count; times++) {
        void *answer = PyObject_CallFunctionObjArgs(call, NULL);
        if (answer) {
            Py_DecRef(answer);
            break;
        }
        PyErr_Clear();
    }
    return times;
}

static int nothing(void *unused) {
    (void)unused;
    return 0;
}

/* Takes every place that pending calls have. */
void fill_pending_calls(void) {
    while (Py_AddPendingCall(nothing, NULL) == 0) {}
}

struct later {
    deleter *function;
    void *tensor;
    unsigned microseconds;
};

static void *delete_later(void *argument) {
    struct later later = *(struct later *)argument;
    free(argument);
    usleep(later.microseconds);
    later.function(later.tensor);
    return NULL;
}

/* Calls a deleter on a native thread, after a while; nobody waits for it. */
int release_later(deleter *function, void *tensor, unsigned microseconds) {
    struct later *later = malloc(sizeof *later);
    *later = (struct later){function, tensor, microseconds};
    pthread_t id;
    return pthread_create(&id, NULL, delete_later, later) || pthread_detach(id);
}

struct race {
    void *import, **capsules;
    size_t count;
    pthread_barrier_t *start;
    unsigned char *won;
};

static void *claim_all(void *argument) {
    struct race *race = argument;
    for (size_t i = 0; i < race->count; i++) {
        if (i % 64 == 0) pthread_barrier_wait(race->start);
        int state = PyGILState_Ensure();
        void *view = PyObject_CallFunctionObjArgs(race->import, race->capsules[i], NULL);
        if (view) {
            race->won[i] = 1;
            Py_DecRef(view);
        } else {
            PyErr_Clear();
        }
        PyGILState_Release(state);
    }
    return NULL;
}

/* Two native threads import every capsule; `won[0]` and `won[1]` say which of them got each. */
int race(void *import, void **capsules, size_t count, unsigned char *first, unsigned char *second) {
    pthread_barrier_t start;
    pthread_barrier_init(&start, NULL, 2);
    pthread_t ids[2];
    struct race races[2] = {{import, capsules, count, &start, first}, {import, capsules, count, &start, second}};
    for (int i = 0; i < 2; i++)
        if (pthread_create(&ids[i], NULL, claim_all, &races[i])) return -1;
    for (int i = 0; i < 2; i++) pthread_join(ids[i], NULL);
    pthread_barrier_destroy(&start);
    return 0;
}

/* What a C++ static would do: at the process's very end, after the interpreter's. */
static struct later kept;

static void at_the_end(void) { kept.function(kept.tensor); }

int keep(deleter *function, void *tensor) {
    kept = (struct later){function, tensor, 0};
    return atexit(at_the_end);
}

/* What a C Exchange or C++ consumer does at the end on a thread of its own. */
static void at_the_end_elsewhere(void) {
    pthread_t id;
    struct storm one = {&kept.function, &kept.tensor, (int64_t[1]){0}, 0, 1};
    if (pthread_create(&id, NULL, release_some, &one) == 0) pthread_join(id, NULL);
}

int keep_for_a_thread(deleter *function, void *tensor) {
    kept = (struct later){function, tensor, 0};
    return atexit(at_the_end_elsewhere);
}

/* A C library's thread: calls Python, and ends itself by `pthread_exit` when it is told to. */
static void *callable;
static pthread_t caller;
static pthread_barrier_t called, told;

static void *call_and_exit(void *unused) {
    (void)unused;
    int state = PyGILState_Ensure();
    void *answer = PyObject_CallFunctionObjArgs(callable, NULL);
    if (answer) Py_DecRef(answer);
    PyGILState_Release(state);
    pthread_barrier_wait(&called);
    pthread_barrier_wait(&told);
    pthread_exit(NULL);
}

static void tell_and_join(void) {
    pthread_barrier_wait(&told);
    pthread_join(caller, NULL);
}

static int start_caller(void *function) {
    callable = function;
    pthread_barrier_init(&called, NULL, 2);
    pthread_barrier_init(&told, NULL, 2);
    if (pthread_create(&caller, NULL, call_and_exit, NULL)) return -1;
    pthread_barrier_wait(&called);
    return 0;
}

int exit_now(void *function) {
    if (start_caller(function)) return -1;
    tell_and_join();
    return 0;
}

int exit_at_the_end(void *function) { return start_caller(function) || atexit(tell_and_join); }

/* What libraries of C do with an error of theirs. */
void jump(void) {
    jmp_buf place;
    if (setjmp(place) == 0) longjmp(place, 1);
}

/* Calls a Python function inside a region with a handler, as compiled without -fexceptions; and inside `pthread_once`, once.
 * Both are loaded by PyDLL. */
static void call(void *function) {
    void *answer = PyObject_CallFunctionObjArgs(function, NULL);
    if (answer) Py_DecRef(answer);
}

static void ignore(void *unused) { (void)unused; }

void call_in_region(void *function) {
    pthread_cleanup_push(ignore, NULL);
    call(function);
    pthread_cleanup_pop(0);
}

static void call_callable(void) { call(callable); }

void call_in_once(void *function) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    callable = function;
    pthread_once(&once, call_callable);
}

/* A function of an exchange table that fails as those of C++ do: by RuntimeError, with a backtrace. */
int fail_vaguely(void *object, void **out) {
    (void)object, (void)out;
    PyErr_SetString(PyExc_RuntimeError, "Cannot pack tensors on meta\nException raised from ...");
    return -1;
}

/* A table's `current_work_stream`: raises the class that was set last, or tells the default stream. */
static void *raised;

void set_raised(void *class) { raised = class; }

int work_stream_or_raise(int32_t device_type, int32_t device_id, void **out) {
    (void)device_type, (void)device_id;
    if (raised) {
        PyErr_SetString(raised, "from a table");
        return -1;
    }
    *out = NULL;
    return 0;
}

/* Calls a table's `current_work_stream` on a thread, and once more when the thread's own values are gone (a key's
 * destructor runs after those of thread-local variables). Returns what the last call returned. */
typedef int work_stream(int32_t, int32_t, void **);
static work_stream *asked;
static pthread_key_t ending;
static int answered;

static void ask_again(void *unused) {
    (void)unused;
    void *stream;
    answered = asked(2, 0, &stream);
}

static void *ask(void *unused) {
    void *stream;
    if (asked(2, 0, &stream) == 0) pthread_setspecific(ending, &ending);
    return unused;
}

int ask_as_a_thread_ends(work_stream *function) {
    pthread_t id;
    asked = function, answered = 1;
    if (pthread_key_create(&ending, ask_again) || pthread_create(&id, NULL, ask, NULL)) return 2;
    pthread_join(id, NULL);
    return answered;
}
