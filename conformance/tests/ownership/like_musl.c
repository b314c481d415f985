/* musl's end of a thread, preloaded over glibc's: nothing is unwound, the frames are gone. (musl's calls the handlers of
 * `pthread_cleanup_push` and the destructors of the thread's values first.)
 *
 * musl unmaps the stack of a detached thread. Here the frames are filled instead, so that whoever still looks at a value
 * in one of them finds an address that no memory has. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

typedef int create(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);

struct start {
    void *(*function)(void *);
    void *argument;
};

/* The outermost frame of this thread that is filled. */
static __thread char *outermost;

static void *begin(void *argument) {
    struct start start = *(struct start *)argument;
    free(argument);
    outermost = __builtin_frame_address(0);
    void *result = start.function(start.argument);
    outermost = NULL;
    return result;
}

int pthread_create(pthread_t *id, const pthread_attr_t *attributes, void *(*function)(void *), void *argument) {
    struct start *start = malloc(sizeof *start);
    if (!start) abort();
    *start = (struct start){function, argument};
    return ((create *)dlsym(RTLD_NEXT, "pthread_create"))(id, attributes, begin, start);
}

/* The frame of the caller begins two words above the address of this one's. */
__attribute__((noinline)) void pthread_exit(void *unused) {
    (void)unused;
    char *from = (char *)__builtin_frame_address(0) + 2 * sizeof(void *);
    if (from < outermost) memset(from, 0xa5, outermost - from);
    for (;;) syscall(SYS_exit, 0);
}
