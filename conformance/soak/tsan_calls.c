/* What newer compilers call of the sanitizer and gcc's runtime does not have: the C library's own, which it watches. */
#include <string.h>

void *__tsan_memcpy(void *to, const void *from, size_t size) { return memcpy(to, from, size); }
void *__tsan_memmove(void *to, const void *from, size_t size) { return memmove(to, from, size); }
void *__tsan_memset(void *at, int byte, size_t size) { return memset(at, byte, size); }
