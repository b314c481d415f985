/* The controls of cusim, the simulated CUDA driver: C prototypes of the sim_* functions.
 *
 * Look them up in the library that the process runs on, as in
 *     void *cuda = dlopen("libcuda.so.1", RTLD_NOW);
 *     uint32_t (*abi)(void) = dlsym(cuda, "sim_abi");
 * A null `sim_abi` means a real driver. Functions that return uint32_t return a CUresult.
 * A stream is a CUstream as a number; 0 and 1 are the legacy stream, 2 the per-thread one.
 * Functions that write text return the bytes needed, the final NUL included.
 */
#ifndef CUSIM_H
#define CUSIM_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The version of this interface: 1. */
uint32_t sim_abi(void);

/* --- the call log --- */

/* Counts the calls of a function, whatever its suffix, since the log was cleared; of all for NULL. */
uint64_t sim_count(const char *name);
void sim_log_clear(void);
/* One line for each call: cuEventRecord(event=0x…, stream=0x…) = 0 */
uint64_t sim_log_text(char *text, uint64_t capacity);
/* The calls of cuGetProcAddress: lines of name, version, flags, found. */
uint64_t sim_lookups_text(char *text, uint64_t capacity);

/* --- faults --- */

/* Makes the nth call from now (1: the next) of a function return `code` and do nothing else; with 0
 * it claims success. */
uint32_t sim_fault(const char *name, uint64_t nth, uint32_t code);
/* The same for the calls of all threads (by 0), of this one (1) or of the others (2). */
uint32_t sim_fault_by(const char *name, uint64_t nth, uint32_t code, uint32_t by);
void sim_fault_clear(void);
uint64_t sim_fault_pending(void);
/* Gives the current context a sticky error. */
uint32_t sim_poison(uint32_t code);

/* --- work on a stream --- */

/* Stops the stream here until sim_open; returns the gate's number, 0 on failure. */
uint64_t sim_gate(uint64_t stream);
uint32_t sim_open(uint64_t gate);
/* Opens every gate, those of tests that ended early too. */
void sim_open_all(void);
/* Stops all host functions that have not begun; they count as done. */
void sim_end_host_functions(void);
uint32_t sim_delay(uint64_t stream, uint64_t microseconds);
/* Enqueues a kernel that writes bytes; `data` is read at once. */
uint32_t sim_store(uint64_t stream, uint64_t address, const void *data, uint64_t bytes);
/* Enqueues a kernel that sums elements (u1 i4 i8 f4 f8) into one i8 or f8. */
uint32_t sim_sum(uint64_t stream, uint64_t result, uint64_t source, uint64_t count, const char *element);
uint32_t sim_queue_length(uint64_t stream, uint64_t *length);
uint64_t sim_pending_work(void);

/* --- memory past all streams --- */

uint32_t sim_peek(uint64_t address, void *into, uint64_t bytes);
uint32_t sim_poke(uint64_t address, const void *from, uint64_t bytes);

/* --- objects that exist --- */

uint64_t sim_live_allocations(void);
uint64_t sim_live_streams(void);
uint64_t sim_live_events(void);
uint64_t sim_live_contexts(void);

/* --- the GIL of a Python in this process --- */

/* Notes calls that enqueue, create, destroy or wait with the GIL held; with names (separated
 * by commas), calls of those functions. 0 switches it off. */
void sim_gil_watch(uint32_t on, const char *names);
uint64_t sim_gil_count(void);
uint64_t sim_gil_text(char *text, uint64_t capacity);
uint32_t sim_gil_held(void);

/* --- settings: devices, optimized (read only; 0: a debug build, whose times say nothing), schedule (0 threaded, 1 lazy), protect, reuse, queue,
 *     driver_version, memory, log (1; 0 for measurements, 2: the calling thread's calls only) --- */

uint32_t sim_set(const char *name, uint64_t value);
/* Returns all ones for a name that does not exist. */
uint64_t sim_get(const char *name);

/* Sets what cuDeviceGetAttribute returns: of a device, of every device for -1. */
uint32_t sim_attribute(int32_t device, int32_t attribute, int32_t value);

/* --- every order: the lazy schedule takes these choices, then the first option each time --- */

uint32_t sim_order_begin(const uint32_t *choices, uint64_t count, uint32_t host_points);
uint64_t sim_order_end(uint32_t *choices, uint32_t *options, uint64_t capacity);

#ifdef __cplusplus
}
#endif
#endif
