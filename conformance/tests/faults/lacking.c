/* Preloaded: `dlsym` that finds none of the names given to `lack`, whoever asks. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

typedef void *(*find_t)(void *, const char *);

static char lacking[4096];

/* Takes the names between commas. */
void lack(const char *names) { snprintf(lacking, sizeof lacking, ",%s,", names); }

static find_t real(void) {
    static find_t found;
    static const char *const versions[] = {"GLIBC_2.34", "GLIBC_2.17", "GLIBC_2.2.5"};
    for (int at = 0; !found && at < 3; at++)
        found = (find_t)dlvsym(RTLD_NEXT, "dlsym", versions[at]);
    return found;
}

void *dlsym(void *library, const char *name) {
    char quoted[128];
    snprintf(quoted, sizeof quoted, ",%s,", name);
    return lacking[0] && strstr(lacking, quoted) ? NULL : real()(library, name);
}
