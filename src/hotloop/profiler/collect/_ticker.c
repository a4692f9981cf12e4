/* Samples of this process's threads, taken by the main thread itself.
 *
 * A C thread that never needs the GIL ticks. At a tick it stores the time and the kernel's counters
 * of each thread, and requests that the interpreter calls `answer_request()`. The main thread does
 * so at the next instruction that checks for requests: at the start of a function, at the end of a
 * loop's body, and after every call of C. It does not release the GIL, and the sample shows the
 * place it had at the tick, in Python or in a call of C that has returned since. Operators,
 * subscripts, `in` and `with` do not check for requests: a product of arrays would be attributed to
 * the next line that calls something. Therefore the tick also copies the main thread's innermost
 * frames, without the GIL (a glimpse), and the answer, which has the GIL, uses the frames that it
 * can verify. If there is no answer by the next tick, because the main thread is in a long call or
 * waits, the sampler's thread, which sleeps in `wait()`, acquires the GIL and calls `look()`. If no
 * thread has run since the last sample, according to the kernel, no new sample is necessary.
 *
 * A sample appends one tuple for every thread that runs Python to a list:
 *
 *     (thread, state, node, tick ns, on core ns, queued ns, wait, idle ns, idle ticks, places, codes)
 *
 * `thread` is the native thread id. `state` is the recorder's state of that thread, or None, and
 * `node` its innermost open span. The times are those at the tick, or -1 if unknown. `wait` is the
 * cause for which the thread was blocked at the tick, from its system call: a name in WAITS, "" if
 * it ran or was about to, None if the kernel does not report it. The idle fields are the time until
 * which no thread ran after the previous sample, and the number of ticks in it. `places` has the
 * bytes of one Place for every frame, innermost first, and `codes` the code objects.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* 3.14 is excluded until it is tested: the structures read here change between versions. */
#if PY_VERSION_HEX >= 0x030B0000 && PY_VERSION_HEX < 0x030E0000 && defined(__linux__) && \
    !defined(Py_GIL_DISABLED)

#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>

#if PY_VERSION_HEX < 0x030D0000
#undef _PyGC_FINALIZED
#define Py_BUILD_CORE
#include <internal/pycore_interp.h>
#include <internal/pycore_runtime.h>
#include <internal/pycore_frame.h>
#if PY_VERSION_HEX < 0x030C0000
#include <internal/pycore_ceval.h>
#endif
#undef Py_BUILD_CORE
#endif

#define CODE_UNIT 2 /* bytes of an instruction; headers hide _Py_CODEUNIT since 3.13 */
/* Of a deeper stack, a sample has this many frames at each end: a recursion is left out. */
#define NUM_END_FRAMES 64
#define MAX_THREADS 64 /* with known times */
#define MAX_LISTED 1024
#define MAX_FREQUENT 32 /* threads that are sampled at each interval; more threads, less often */
#define MAX_GLIMPSED_FRAMES 4
#define MAX_FRAMES (2 * NUM_END_FRAMES + MAX_GLIMPSED_FRAMES)
#define MAX_KNOWN 8192 /* a power of two */

enum { STOPPED, UNANSWERED, DUE };
/* Causes for which a thread is blocked. SOMETHING: any other cause. */
enum { UNKNOWN, RUNS, SLEEP, LOCK, INTERPRETER, CHILD, DISK, NETWORK, PIPE, EVENTS, SOMETHING };
static const char *const WAITS[] = {NULL,   "",     "sleep",   "lock", "interpreter", "child",
                                    "disk", "network", "pipe", "events", "something"};

typedef struct {
    uint64_t code;
    int64_t instruction;
} Place;

/* A descriptor, -1 if there is none, and its file. A daemon closes all descriptors, and its own files
   may then get their numbers. */
typedef struct {
    int number;
    dev_t device;
    ino_t inode;
} File;

typedef struct {
    unsigned long thread; /* 0: the slot is free */
    File file, calls; /* with its times and its system call; `calls` may be missing */
    int wait;
    int64_t on_core, queued;
} Times;

typedef struct {
    int64_t until_ns;
    long ticks;
} Idle;

/* The words of a frame at a tick, for comparison only: the pointers may be invalid. */
typedef struct {
    uintptr_t frame, code, instruction;
} GlimpsedFrame;

typedef struct {
    int depth;
    GlimpsedFrame frames[MAX_GLIMPSED_FRAMES]; /* innermost first */
} Glimpse;

/* Function of hotloop.timing._recorder: a thread's State (borrowed) and index of its open span. */
typedef PyObject *(*Current)(unsigned long thread, int32_t *node);

static Current current;
static PyObject *records;
static unsigned long main_ident, main_thread;
static PyThreadState *main_state;
static unsigned long sampler_thread; /* 0: not known yet, no samples are taken */
static int64_t interval_ns, due_ns, overhead_ns;
static uint64_t random_state;
static pthread_t ticker;
static int is_ticking; /* guarded by the GIL */
static int is_requested; /* and the main thread has not answered; atomic */
static int has_unknown_times; /* some threads have no known times; atomic */
static int num_threads; /* of the last sample; atomic */

/* Guarded by the lock. A tick reads into `times`, and samples use the copy `tick_times`. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t ticker_wakeup, sampler_wakeup;
static int is_stopping, is_unanswered;
static int64_t tick_ns, sampled_ns;
static Idle idle;
static Glimpse tick_glimpse;
static Times times[MAX_THREADS], tick_times[MAX_THREADS], sample_times[MAX_THREADS];

static int64_t now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* ---- thread times of the kernel ---- */

static File open_file(unsigned long thread, const char *name) {
    char path[64];
    struct stat status;
    snprintf(path, sizeof path, "/proc/self/task/%lu/%s", thread, name);
    int number = open(path, O_RDONLY | O_CLOEXEC);
    if (number < 0 || fstat(number, &status) < 0) return (File){-1, 0, 0};
    return (File){number, status.st_dev, status.st_ino};
}

/* Whether the descriptor still refers to its file. */
static int is_open(const File *file) {
    struct stat status;
    return file->number >= 0 && fstat(file->number, &status) == 0 &&
           status.st_dev == file->device && status.st_ino == file->inode;
}

static void free_slot(Times *slot) {
    if (is_open(&slot->file)) close(slot->file.number);
    if (is_open(&slot->calls)) close(slot->calls.number);
    __atomic_store_n(&slot->thread, 0, __ATOMIC_RELEASE);
}

/* Cause of a wait in a call on a descriptor. */
static int wait_of_file(int file) {
    char path[32], target[8] = "";
    int domain = 0;
    socklen_t size = sizeof domain;
    if (getsockopt(file, SOL_SOCKET, SO_DOMAIN, &domain, &size) == 0)
        return domain == AF_UNIX ? PIPE : NETWORK;
    snprintf(path, sizeof path, "/proc/self/fd/%d", file);
    if (readlink(path, target, sizeof target - 1) < 0) return SOMETHING;
    if (strncmp(target, "pipe:", 5) == 0) return PIPE;
    return target[0] == '/' && strncmp(target, "/dev/", 5) != 0 ? DISK : SOMETHING;
}

static int is_interpreter_lock(uint64_t address) {
#if PY_VERSION_HEX >= 0x030D0000
    return 0; /* its address is no longer public */
#else
#if PY_VERSION_HEX >= 0x030C0000
    struct _gil_runtime_state *gil = PyInterpreterState_Main()->ceval.gil;
#else
    struct _gil_runtime_state *gil = &_PyRuntime.ceval.gil;
#endif
    return address >= (uint64_t)(uintptr_t)gil && address < (uint64_t)(uintptr_t)(gil + 1);
#endif
}

/* Parse the kernel's text: "running", or the number of a call and its arguments in hexadecimal. */
static int wait_of_call(const char *text) {
    char *end_of_number;
    if (text[0] == 'r') return RUNS;
    long call = strtol(text, &end_of_number, 10);
    uint64_t first = strtoull(end_of_number, NULL, 16);
    switch (call) {
    case SYS_futex: return is_interpreter_lock(first) ? INTERPRETER : LOCK;
    case SYS_flock: case SYS_fcntl: return LOCK;
    case SYS_nanosleep: case SYS_clock_nanosleep: return SLEEP;
    case SYS_wait4: case SYS_waitid: return CHILD;
    case SYS_connect: return NETWORK;
    case SYS_read: case SYS_write: case SYS_readv: case SYS_writev: case SYS_recvfrom:
    case SYS_recvmsg: case SYS_sendto: case SYS_sendmsg: case SYS_accept: case SYS_accept4:
    case SYS_ioctl: case SYS_close: return wait_of_file((int)first);
    case SYS_pread64: case SYS_pwrite64: case SYS_fsync: case SYS_fdatasync: case SYS_sync:
    case SYS_syncfs: case SYS_sync_file_range: case SYS_msync: case SYS_fallocate:
    case SYS_ftruncate: case SYS_openat: case SYS_unlinkat: case SYS_renameat2: case SYS_mkdirat:
    case SYS_copy_file_range: case SYS_sendfile: case SYS_getdents64: return DISK;
#ifdef SYS_rename
    case SYS_open: case SYS_rename: case SYS_unlink: case SYS_mkdir: case SYS_rmdir: return DISK;
    case SYS_poll: return EVENTS;
    case SYS_select: return first == 0 ? SLEEP : EVENTS;
    case SYS_epoll_wait: return EVENTS;
#endif
    case SYS_pselect6: return first == 0 ? SLEEP : EVENTS;
    case SYS_ppoll: case SYS_epoll_pwait: return EVENTS;
    default: return SOMETHING;
    }
}

/* Only the ticker frees slots. Only samples, one at a time, occupy them. */
static void read_times(void) {
    for (Times *slot = times; slot < times + MAX_THREADS; slot++) {
        char text[64];
        unsigned long thread = __atomic_load_n(&slot->thread, __ATOMIC_ACQUIRE);
        if (thread == 0) continue;
        ssize_t size = is_open(&slot->file) ? pread(slot->file.number, text, sizeof text - 1, 0) : 0;
        if (size <= 0) { /* the thread has ended, or the program has closed the file */
            free_slot(slot);
            continue;
        }
        text[size] = 0;
        char *end_of_number;
        int64_t before = slot->on_core;
        slot->on_core = strtoll(text, &end_of_number, 10);
        slot->queued = strtoll(end_of_number, NULL, 10);
        slot->wait = UNKNOWN;
        if (before < 0 || !is_open(&slot->calls)) continue;
        size = pread(slot->calls.number, text, sizeof text - 1, 0);
        if (size <= 0) continue;
        text[size] = 0;
        slot->wait = wait_of_call(text);
    }
}

/* Read a thread's times from the next tick on. Returns 0 if that is impossible. */
static int open_times(unsigned long thread) {
    for (Times *slot = times; slot < times + MAX_THREADS; slot++) {
        if (__atomic_load_n(&slot->thread, __ATOMIC_ACQUIRE) != 0) continue;
        slot->file = open_file(thread, "schedstat");
        if (slot->file.number < 0) return 0;
        slot->calls = open_file(thread, "syscall"); /* missing in some kernels */
        slot->wait = UNKNOWN;
        slot->on_core = slot->queued = -1; /* a tick may publish the slot before it has read it */
        __atomic_store_n(&slot->thread, thread, __ATOMIC_RELEASE);
        return 1;
    }
    return 0;
}

/* ---- glimpses ---- */

#if PY_VERSION_HEX < 0x030D0000
/* Copy memory that may have been reused or unmapped, without the GIL. The kernel copies it, and
   returns an error if it is unmapped. */
static int copy_memory(void *to, const void *from, size_t size) {
    struct iovec local = {to, size}, remote = {(void *)from, size};
    return process_vm_readv(getpid(), &local, 1, &remote, 1, 0) == (ssize_t)size;
}

static const _PyInterpreterFrame *read_innermost(void) {
    _PyCFrame cframe_copy;
    const void *cframe = *(void *volatile *)&main_state->cframe;
    return copy_memory(&cframe_copy, cframe, sizeof cframe_copy) ? cframe_copy.current_frame : NULL;
}

/* Frames do not change while they wait for the frame that they have called. The copies are
   consistent if the innermost frame is the same after reading all. If calls are shorter than
   reading, it may never be. */
static void take_glimpse(Glimpse *glimpse) {
    for (int tries = 0; main_state != NULL && tries < 6; tries++) {
        const _PyInterpreterFrame *first = read_innermost(), *at = first;
        glimpse->depth = 0;
        while (at != NULL && glimpse->depth < MAX_GLIMPSED_FRAMES) {
            _PyInterpreterFrame frame;
            if (!copy_memory(&frame, at, offsetof(_PyInterpreterFrame, localsplus))) break;
            glimpse->frames[glimpse->depth++] = (GlimpsedFrame){
                (uintptr_t)at, (uintptr_t)frame.f_code, (uintptr_t)frame.prev_instr};
            at = frame.previous;
        }
        _PyInterpreterFrame again;
        if (first != NULL && read_innermost() == first &&
            copy_memory(&again, first, offsetof(_PyInterpreterFrame, localsplus)) &&
            (uintptr_t)again.f_code == glimpse->frames[0].code)
            return;
    }
    glimpse->depth = 0;
}

/* Codes that were read with the GIL. A reference guarantees that the address is not reused. */
static PyCodeObject *known_codes[MAX_KNOWN];
static int num_known;

static PyCodeObject **code_slot(uintptr_t code) {
    size_t k = (code >> 4) * 0x9E3779B97F4A7C15u >> 51;
    while (known_codes[k % MAX_KNOWN] != NULL && (uintptr_t)known_codes[k % MAX_KNOWN] != code) k++;
    return &known_codes[k % MAX_KNOWN];
}

static void keep_code(PyCodeObject *code) {
    PyCodeObject **slot = code_slot((uintptr_t)code);
    if (*slot != NULL || num_known >= MAX_KNOWN / 2) return;
    Py_INCREF(code);
    *slot = code;
    num_known++;
}

/* Find code nested in other code: a module's code contains all its functions and methods. */
static PyCodeObject *find_nested(PyCodeObject *code, uintptr_t address, int levels) {
    for (Py_ssize_t k = 0; levels > 0 && k < PyTuple_GET_SIZE(code->co_consts); k++) {
        PyObject *constant = PyTuple_GET_ITEM(code->co_consts, k);
        if (!PyCode_Check(constant)) continue;
        if ((uintptr_t)constant == address) return (PyCodeObject *)constant;
        PyCodeObject *found = find_nested((PyCodeObject *)constant, address, levels - 1);
        if (found != NULL) return found;
    }
    return NULL;
}

/* Find the code of a function in a module's dictionary or in those of its classes. */
static PyCodeObject *find_in_namespace(PyObject *names, uintptr_t address, int levels) {
    PyObject *name, *value;
    Py_ssize_t position = 0;
    while (PyDict_Next(names, &position, &name, &value)) {
        PyCodeObject *found = NULL;
        if (PyFunction_Check(value)) {
            found = (PyCodeObject *)PyFunction_GET_CODE(value);
            if ((uintptr_t)found != address) found = find_nested(found, address, 2);
        } else if (levels > 1 && PyType_Check(value) && ((PyTypeObject *)value)->tp_dict != NULL) {
            found = find_in_namespace(((PyTypeObject *)value)->tp_dict, address, levels - 1);
        }
        if (found != NULL) return found;
    }
    return NULL;
}

/* Find the code that a frame has called, among the codes that it can be expected to call. A cache
   avoids repeated searches for a code that was not found. */
static PyCodeObject *find_callee(const _PyInterpreterFrame *frame, PyCodeObject **codes, int depth,
                                 uintptr_t address) {
    static uintptr_t missing_addresses[256];
    PyCodeObject *found = *code_slot(address);
    uintptr_t *missing = &missing_addresses[(address >> 4) * 0x9E3779B97F4A7C15u >> 56];
    if (found != NULL || *missing == address) return found;
    found = find_in_namespace(frame->f_globals, address, 2);
    for (int k = 0; found == NULL && k < depth; k++) found = find_nested(codes[k], address, 3);
    if (found == NULL)
        *missing = address;
    else
        keep_code(found);
    return *code_slot(address);
}

/* The offset of an instruction in a code, or -1 if it is outside. */
static int64_t offset_in(PyCodeObject *code, uintptr_t instruction) {
    uintptr_t first = (uintptr_t)_PyCode_CODE(code);
    uintptr_t size = (uintptr_t)Py_SIZE(code) * CODE_UNIT;
    return instruction >= first && instruction < first + size ? (int64_t)(instruction - first) : -1;
}

/* Restore the main thread's stack at the tick: set the innermost frame that existed then to its
   instruction at the tick, and prepend the frames that have returned. Returns the new depth. */
static int restore_frames(const Glimpse *glimpse, Place *places, PyCodeObject **codes,
                          const _PyInterpreterFrame *const *frames, int depth) {
    for (int k = 0; k < glimpse->depth; k++) {
        const GlimpsedFrame *caller = &glimpse->frames[k];
        int base = 0;
        while (base < depth &&
               ((uintptr_t)frames[base] != caller->frame ||
                (uintptr_t)codes[base] != caller->code))
            base++;
        if (base == depth) continue;
        int64_t at = offset_in(codes[base], caller->instruction);
        if (at < 0) return depth;
        /* Count the returned frames with known code, from this frame inwards. */
        int inner = 0;
        while (inner < k) {
            const GlimpsedFrame *returned = &glimpse->frames[k - 1 - inner];
            PyCodeObject *code = find_callee((const _PyInterpreterFrame *)caller->frame,
                                             codes + base, depth - base, returned->code);
            if (code == NULL || offset_in(code, returned->instruction) < 0) break;
            inner++;
        }
        for (int j = 0; j < base; j++) Py_DECREF(codes[j]);
        memmove(codes + inner, codes + base, (size_t)(depth - base) * sizeof *codes);
        memmove(places + inner, places + base, (size_t)(depth - base) * sizeof *places);
        places[inner].instruction = at;
        for (int j = 0; j < inner; j++) {
            const GlimpsedFrame *returned = &glimpse->frames[k - inner + j];
            codes[j] = *code_slot(returned->code);
            Py_INCREF(codes[j]);
            places[j] = (Place){returned->code, offset_in(codes[j], returned->instruction)};
        }
        return depth - base + inner;
    }
    return depth;
}
#else /* the layout of frames changes with each version */
static void take_glimpse(Glimpse *glimpse) { glimpse->depth = 0; }
#endif

/* ---- samples, with the GIL ---- */

#if PY_VERSION_HEX < 0x030D0000
/* A frame without the Python object, whose creation takes most of the time in a deep stack. */
typedef const _PyInterpreterFrame *Frame;

static Frame complete_frame(Frame frame) {
    while (frame != NULL && _PyFrame_IsIncomplete((_PyInterpreterFrame *)frame))
        frame = frame->previous;
    return frame;
}

static Frame innermost_frame(PyThreadState *source) {
    return complete_frame(source->cframe->current_frame);
}

static Frame outer_frame(Frame frame) { return complete_frame(frame->previous); }

static PyCodeObject *code_of(Frame frame) { return frame->f_code; }

static int instruction_of(Frame frame) {
    int instruction = _PyInterpreterFrame_LASTI((_PyInterpreterFrame *)frame);
    return instruction < 0 ? -1 : instruction * CODE_UNIT;
}
#else
typedef PyFrameObject *Frame; /* kept alive by its thread, which does not run */

static Frame borrowed(Frame frame) {
    Py_XDECREF(frame);
    return frame;
}

static Frame innermost_frame(PyThreadState *source) {
    return borrowed(PyThreadState_GetFrame(source));
}

static Frame outer_frame(Frame frame) { return borrowed(PyFrame_GetBack(frame)); }

static PyCodeObject *code_of(Frame frame) {
    PyCodeObject *code = PyFrame_GetCode(frame);
    Py_DECREF(code); /* the frame has a reference */
    return code;
}

static int instruction_of(Frame frame) { return PyFrame_GetLasti(frame); }
#endif

/* Read a stack, innermost frame first, without references. Returns its depth. */
static int read_stack(PyThreadState *source, Frame *frames) {
    int count = 0;
    for (Frame frame = innermost_frame(source); frame != NULL; frame = outer_frame(frame), count++)
        frames[count < NUM_END_FRAMES ? count : NUM_END_FRAMES + count % NUM_END_FRAMES] = frame;
    if (count <= 2 * NUM_END_FRAMES) return count;
    /* The outermost frames are a ring, whose first one follows the last one. */
    Frame outer[NUM_END_FRAMES];
    for (int k = 0; k < NUM_END_FRAMES; k++)
        outer[k] = frames[NUM_END_FRAMES + (count + k) % NUM_END_FRAMES];
    memcpy(frames + NUM_END_FRAMES, outer, sizeof outer);
    return 2 * NUM_END_FRAMES;
}

static int append_record(PyThreadState *source, int64_t at_ns, const Times *known,
                         Idle previous_idle, const Glimpse *glimpse, int *is_unknown) {
    unsigned long thread = source->thread_id == main_ident ? main_thread : source->native_thread_id;
    if (thread == sampler_thread) return 0;
    Frame frames[2 * NUM_END_FRAMES];
    int depth = read_stack(source, frames);
    if (depth == 0) return 0;
    Place places[MAX_FRAMES];
    PyCodeObject *codes[MAX_FRAMES];
    for (int k = 0; k < depth; k++) {
        codes[k] = code_of(frames[k]);
        Py_INCREF(codes[k]);
        places[k] = (Place){(uint64_t)(uintptr_t)codes[k], instruction_of(frames[k])};
    }
#if PY_VERSION_HEX < 0x030D0000
    if (source == main_state) {
        for (int k = 0; k < depth; k++) keep_code(codes[k]);
        depth = restore_frames(glimpse, places, codes, frames, depth);
    }
#endif
    int32_t node = 0;
    PyObject *state = current(thread, &node);
    const Times *slot = known;
    while (slot < known + MAX_THREADS && slot->thread != thread) slot++;
    int is_known = slot < known + MAX_THREADS;
    if (!is_known && !open_times(thread)) *is_unknown = 1;
    PyObject *code_tuple = PyTuple_New(depth);
    for (int k = 0; k < depth; k++)
        if (code_tuple != NULL)
            PyTuple_SET_ITEM(code_tuple, k, (PyObject *)codes[k]);
        else
            Py_DECREF(codes[k]);
    if (code_tuple == NULL) return -1;
    PyObject *record = Py_BuildValue(
        "(kOiLLLzLly#N)", thread, state == NULL ? Py_None : state, (int)node, (long long)at_ns,
        is_known ? (long long)slot->on_core : -1LL, is_known ? (long long)slot->queued : -1LL,
        is_known ? WAITS[slot->wait] : NULL,
        (long long)previous_idle.until_ns, previous_idle.ticks,
        (const char *)places, (Py_ssize_t)(depth * sizeof(Place)), code_tuple);
    if (record == NULL) return -1;
    int failed = PyList_Append(records, record);
    Py_DECREF(record);
    return failed;
}

/* List the threads of the main interpreter, the main thread first: Python lists it last, behind the
   limit. Returns -1 if another thread has locked the list. No thread ends while this one holds the
   GIL, but one created by C may be adding itself. */
static int list_threads(PyThreadState **threads) {
    int count = 0;
    if (main_state != NULL) threads[count++] = main_state;
#if PY_VERSION_HEX < 0x030C0000
    /* Later versions add a thread once it is complete. Do not wait for the lock: its holder may be
       waiting for the GIL (CPython issue 106883). */
    PyThread_type_lock mutex = _PyRuntime.interpreters.mutex;
    if (!PyThread_acquire_lock(mutex, NOWAIT_LOCK)) return -1;
#endif
    PyThreadState *state = PyInterpreterState_ThreadHead(PyInterpreterState_Main());
    for (; state != NULL && count < MAX_LISTED; state = PyThreadState_Next(state))
        if (state != main_state) threads[count++] = state;
#if PY_VERSION_HEX < 0x030C0000
    PyThread_release_lock(mutex);
#endif
    return count;
}

/* Sample all threads, once per tick. */
static int sample_threads(void) {
    static Times known[MAX_THREADS]; /* both guarded by the GIL */
    static PyThreadState *threads[MAX_LISTED];
    int count = list_threads(threads);
    if (count < 0) return 0;
    pthread_mutex_lock(&lock);
    int64_t at_ns = tick_ns;
    int is_new = at_ns > sampled_ns && records != NULL && sampler_thread != 0;
    Idle previous_idle = idle;
    Glimpse glimpse = tick_glimpse;
    if (is_new) {
        sampled_ns = at_ns;
        idle = (Idle){0};
        memcpy(known, tick_times, sizeof known);
        memcpy(sample_times, tick_times, sizeof sample_times);
    }
    pthread_mutex_unlock(&lock);
    if (!is_new) return 0;
    __atomic_store_n(&num_threads, count, __ATOMIC_RELAXED);
    int failed = 0, is_unknown = 0;
    /* A finalizer could release the GIL, and the sampled thread could end. */
    int was_gc_enabled = PyGC_Disable();
    for (int k = 0; k < count && !failed; k++)
        failed = append_record(threads[k], at_ns, known, previous_idle, &glimpse, &is_unknown);
    if (was_gc_enabled) PyGC_Enable();
    __atomic_store_n(&has_unknown_times, is_unknown, __ATOMIC_RELAXED);
    return failed;
}

/* Called by the interpreter in the main thread. */
static int answer_request(void *Py_UNUSED(ignored)) {
    if (!__atomic_exchange_n(&is_requested, 0, __ATOMIC_ACQ_REL)) return 0;
    int64_t start_ns = now();
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    if (sample_threads() < 0) PyErr_Clear(); /* out of memory, which the program will notice */
    PyErr_Restore(type, value, traceback);
    __atomic_fetch_add(&overhead_ns, now() - start_ns, __ATOMIC_RELAXED);
    return 0;
}

static PyObject *look(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(ignored)) {
    /* No sample if the main thread has answered while this thread waited for the GIL. */
    if (__atomic_load_n(&is_requested, __ATOMIC_ACQUIRE) && sample_threads() < 0) return NULL;
    Py_RETURN_NONE;
}

/* ---- forks ---- */

/* Python drops an exception in a function of `os.register_at_fork`. A signal that arrives there, such
   as Ctrl-C, would be lost. So signals are blocked from the first of these functions to the last. In
   C, since Python calls the handlers of signals before a function of Python returns. */
static _Thread_local sigset_t signals_before;
static _Thread_local int num_blocks; /* there may have been several recordings */

static PyObject *block_signals(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(ignored)) {
    if (num_blocks++ > 0) Py_RETURN_NONE;
    sigset_t all;
    sigfillset(&all);
    const int faults[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL}; /* caused by the thread itself */
    for (size_t k = 0; k < sizeof faults / sizeof *faults; k++) sigdelset(&all, faults[k]);
    pthread_sigmask(SIG_BLOCK, &all, &signals_before);
    Py_RETURN_NONE;
}

static PyObject *restore_signals(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(ignored)) {
    if (num_blocks > 0 && --num_blocks == 0) pthread_sigmask(SIG_SETMASK, &signals_before, NULL);
    Py_RETURN_NONE;
}

/* ---- the ticker ---- */

/* Random gaps of 0.5 to 1.5 intervals, so that ticks do not synchronize with a periodic program. */
static int64_t next_gap(void) {
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    int num = __atomic_load_n(&num_threads, __ATOMIC_RELAXED);
    int64_t ns = num <= MAX_FREQUENT ? interval_ns : interval_ns * num / MAX_FREQUENT;
    return ns / 2 + (int64_t)(random_state % (uint64_t)(ns + 1));
}

/* Call with the lock. Returns 1 if the ticker stops or the flag is set, 0 after the time. */
static int wait_until(int64_t ns, pthread_cond_t *condition, const int *flag) {
    struct timespec t = {.tv_sec = ns / 1000000000, .tv_nsec = ns % 1000000000};
    while (!is_stopping && (flag == NULL || !*flag))
        if (pthread_cond_timedwait(condition, &lock, &t) != 0) break;
    return is_stopping || (flag != NULL && *flag);
}

/* Request a sample. Returns 0 if the queue of pending calls is full. */
static int request_sample(void) {
#if PY_VERSION_HEX < 0x030C0000
    /* The public function reads the state of the thread with the GIL, which may be ending. */
    if (_PyEval_AddPendingCall(PyInterpreterState_Main(), answer_request, NULL) < 0) return 0;
#else
    if (Py_AddPendingCall(answer_request, NULL) < 0) return 0;
#endif
#if PY_VERSION_HEX < 0x030D0000
    /* Before 3.13, a request from another thread sets no flag, and would wait until the main thread
       acquires the GIL again, after an operation of NumPy or torch. */
    _Py_atomic_store_relaxed(&PyInterpreterState_Main()->ceval.eval_breaker, 1);
#endif
    return 1;
}

/* Whether a thread has run, or may have run, since the last sample. It may have before the first
   sample, and if the kernel does not report times (some report 0). */
static int has_run(void) {
    if (sampled_ns == 0 || __atomic_load_n(&has_unknown_times, __ATOMIC_RELAXED)) return 1;
    for (int k = 0; k < MAX_THREADS; k++)
        if (times[k].thread != sample_times[k].thread ||
            (times[k].thread != 0 &&
             (times[k].on_core <= 0 || times[k].on_core != sample_times[k].on_core)))
            return 1;
    return 0;
}

static void *tick(void *Py_UNUSED(ignored)) {
    int64_t before_ns = 0;
    prctl(PR_SET_NAME, "hotloop-ticks");
    prctl(PR_SET_TIMERSLACK, 1); /* Linux may wake a thread 50 us late, to wake several at once */
    pthread_mutex_lock(&lock);
    while (!wait_until(due_ns, &ticker_wakeup, NULL)) {
        pthread_mutex_unlock(&lock);
        struct timespec t;
        clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
        int64_t took_ns = (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
        __atomic_fetch_add(&overhead_ns, took_ns - before_ns, __ATOMIC_RELAXED);
        before_ns = took_ns;
        Glimpse glimpse;
        take_glimpse(&glimpse);
        read_times();
        int64_t at_ns = now();
        due_ns += next_gap();
        if (due_ns < at_ns) due_ns = at_ns + next_gap(); /* other threads used the cores */
        pthread_mutex_lock(&lock);
        if (__atomic_load_n(&is_requested, __ATOMIC_ACQUIRE) && !has_run()) {
            idle.until_ns = at_ns;
            idle.ticks++;
            continue;
        }
        tick_ns = at_ns;
        tick_glimpse = glimpse;
        memcpy(tick_times, times, sizeof times);
        if (__atomic_exchange_n(&is_requested, 1, __ATOMIC_ACQ_REL)) {
            is_unanswered = 1;
            pthread_cond_signal(&sampler_wakeup);
        } else if (!request_sample()) {
            __atomic_store_n(&is_requested, 0, __ATOMIC_RELEASE);
        }
    }
    pthread_mutex_unlock(&lock);
    return NULL;
}

static PyObject *start(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(ignored)) {
    if (is_ticking) Py_RETURN_NONE;
    is_stopping = 0;
    sampler_thread = 0;
    pthread_attr_t attributes;
    sigset_t all, before;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, 256 * 1024);
    sigfillset(&all); /* signals are for the program's threads */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int failed = pthread_create(&ticker, &attributes, tick, NULL);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attributes);
    if (failed) return PyErr_Format(PyExc_RuntimeError, "can't start a thread: %d", failed);
    is_ticking = 1;
    Py_RETURN_NONE;
}

static PyObject *stop(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(ignored)) {
    if (!is_ticking) Py_RETURN_NONE;
    is_ticking = 0;
    pthread_mutex_lock(&lock);
    is_stopping = 1;
    pthread_cond_broadcast(&ticker_wakeup);
    pthread_cond_broadcast(&sampler_wakeup);
    pthread_mutex_unlock(&lock);
    Py_BEGIN_ALLOW_THREADS;
    pthread_join(ticker, NULL);
    Py_END_ALLOW_THREADS;
    Py_RETURN_NONE;
}

/* ---- the sampler's thread ---- */

static int write_all(int file, const char *data, Py_ssize_t size) {
    while (size > 0) {
        ssize_t written = write(file, data, (size_t)size);
        if (written < 0 && errno != EINTR) return errno;
        if (written > 0) data += written, size -= written;
    }
    return 0;
}

/* Also writes the data, so that the thread releases and acquires the GIL only once. */
static PyObject *wait_for(PyObject *Py_UNUSED(module), PyObject *args) {
    long long until_ns;
    int file;
    Py_buffer data;
    if (!PyArg_ParseTuple(args, "Liy*", &until_ns, &file, &data)) return NULL;
    int result = STOPPED, failed;
    Py_BEGIN_ALLOW_THREADS;
    failed = write_all(file, data.buf, data.len);
    if (!failed) {
        pthread_mutex_lock(&lock);
        int is_signaled = wait_until(until_ns, &sampler_wakeup, &is_unanswered);
        result = !is_signaled ? DUE : is_stopping ? STOPPED : UNANSWERED;
        is_unanswered = 0;
        pthread_mutex_unlock(&lock);
    }
    Py_END_ALLOW_THREADS;
    PyBuffer_Release(&data);
    if (!failed) return PyLong_FromLong(result);
    errno = failed;
    return PyErr_SetFromErrno(PyExc_OSError);
}

static PyObject *begin(PyObject *Py_UNUSED(module), PyObject *args) {
    PyObject *list;
    double interval_s;
    unsigned long ident, thread;
    if (!PyArg_ParseTuple(args, "O!dkk", &PyList_Type, &list, &interval_s, &ident, &thread))
        return NULL;
    if (current == NULL) {
        Current *found = PyCapsule_Import("hotloop.timing._recorder.CURRENT", 0);
        if (found == NULL) return NULL;
        current = *found;
    }
    /* A forked child may have inherited a locked lock. */
    pthread_mutex_t fresh = PTHREAD_MUTEX_INITIALIZER;
    lock = fresh;
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&ticker_wakeup, &attributes);
    pthread_cond_init(&sampler_wakeup, &attributes);
    pthread_condattr_destroy(&attributes);
    Py_INCREF(list);
    Py_XSETREF(records, list);
    main_ident = ident;
    main_thread = thread;
    main_state = PyInterpreterState_ThreadHead(PyInterpreterState_Main());
    while (main_state != NULL && main_state->thread_id != ident)
        main_state = PyThreadState_Next(main_state);
    interval_ns = (int64_t)(interval_s * 1e9);
    due_ns = now() + interval_ns;
    sampled_ns = overhead_ns = 0; /* of a forked child's parent */
    random_state = (uint64_t)due_ns * 0x9E3779B97F4A7C15u | 1;
    is_ticking = is_stopping = is_requested = is_unanswered = has_unknown_times = num_threads = 0;
    sampler_thread = 0;
    Py_RETURN_NONE;
}

static PyObject *enter(PyObject *Py_UNUSED(module), PyObject *args) {
    if (!PyArg_ParseTuple(args, "k", &sampler_thread)) return NULL;
    Py_RETURN_NONE;
}

static PyObject *end(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(ignored)) {
    Py_CLEAR(records);
    main_state = NULL; /* in a forked child, it may have been freed */
    for (Times *slot = times; slot < times + MAX_THREADS; slot++)
        if (slot->thread != 0) free_slot(slot);
    memset(tick_times, 0, sizeof tick_times);
    memset(sample_times, 0, sizeof sample_times);
    idle = (Idle){0};
    Py_RETURN_NONE;
}

/* In one call: a sample between two calls would be assigned to the wrong list. */
static PyObject *swap(PyObject *Py_UNUSED(module), PyObject *list) {
    if (!PyList_CheckExact(list)) {
        PyErr_SetString(PyExc_TypeError, "expected a list");
        return NULL;
    }
    PyObject *previous = records;
    if (previous == NULL) return Py_BuildValue("(NLl)", PyList_New(0), 0LL, 0L);
    Py_INCREF(list);
    records = list;
    pthread_mutex_lock(&lock);
    Idle previous_idle = idle;
    idle = (Idle){0};
    pthread_mutex_unlock(&lock);
    return Py_BuildValue("(NLl)", previous, (long long)previous_idle.until_ns, previous_idle.ticks);
}

static PyObject *now_ns(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(ignored)) {
    return PyLong_FromLongLong(now());
}

static PyObject *cost_ns(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(ignored)) {
    return PyLong_FromLongLong(__atomic_load_n(&overhead_ns, __ATOMIC_RELAXED));
}

/* Whether a thread that runs Python has a trace or profile function. */
static PyObject *is_traced(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(ignored)) {
    static PyThreadState *threads[MAX_LISTED]; /* guarded by the GIL */
    int count = list_threads(threads);
    for (int k = 0; k < count; k++)
        if (threads[k]->c_profilefunc != NULL || threads[k]->c_tracefunc != NULL) Py_RETURN_TRUE;
    Py_RETURN_FALSE;
}

static PyObject *line_of(PyObject *Py_UNUSED(module), PyObject *args) {
    PyCodeObject *code;
    int instruction;
    if (!PyArg_ParseTuple(args, "O!i", &PyCode_Type, &code, &instruction)) return NULL;
    int line = PyCode_Addr2Line(code, instruction);
    /* Some instructions have no line, such as a loop's jump to its head. Use the preceding ones. */
    while (line < 0 && instruction >= CODE_UNIT) {
        instruction -= CODE_UNIT;
        line = PyCode_Addr2Line(code, instruction);
    }
    return PyLong_FromLong(line);
}

static PyMethodDef methods[] = {
    {"begin", begin, METH_VARARGS,
     "begin(records, interval_s, ident, thread): reset; Python and native id of the main thread."},
    {"start", start, METH_NOARGS, "Start the ticker."},
    {"stop", stop, METH_NOARGS, "Stop the ticker; `wait()` returns."},
    {"end", end, METH_NOARGS, "Free all resources."},
    {"enter", enter, METH_VARARGS,
     "enter(thread): native id of the sampler's thread, which is not sampled."},
    {"wait", wait_for, METH_VARARGS,
     "wait(until_ns, file, data): write the data, then wait until the ticker stops (STOPPED), the\n"
     "main thread has not answered (UNANSWERED), or the time is reached (DUE)."},
    {"look", look, METH_NOARGS, "Take the sample that the main thread has not taken."},
    {"swap", swap, METH_O,
     "swap(records): append samples to another list. Returns the previous list, the time until\n"
     "which no thread has run after its last sample, and the number of ticks in that time."},
    {"now_ns", now_ns, METH_NOARGS, "Like `time.monotonic_ns()`, which a program may replace."},
    {"cost_ns", cost_ns, METH_NOARGS, "Time of ticks and answers in nanoseconds."},
    {"block_signals", block_signals, METH_NOARGS, "Block signals in this thread."},
    {"restore_signals", restore_signals, METH_NOARGS, "Restore those before `block_signals()`."},
    {"is_traced", is_traced, METH_NOARGS,
     "Whether a thread has a trace or a profile function (`sys.settrace`, `sys.setprofile`)."},
    {"line_of", line_of, METH_VARARGS,
     "line_of(code, instruction): line at a byte offset, or the last line before it."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "hotloop.profiler.collect._ticker",
    .m_doc = "Sampling of this process's threads.",
    .m_size = -1,
    .m_methods = methods,
};

PyMODINIT_FUNC PyInit__ticker(void) {
    PyObject *module = PyModule_Create(&definition);
    if (module == NULL) return NULL;
    if (PyModule_AddIntMacro(module, STOPPED) < 0 || PyModule_AddIntMacro(module, UNANSWERED) < 0 ||
        PyModule_AddIntMacro(module, DUE) < 0) {
        Py_DECREF(module);
        return NULL;
    }
    return module;
}

#else

PyMODINIT_FUNC PyInit__ticker(void) {
    /* strerror links the library with libc: auditwheel rejects a library without libc. */
    return PyErr_Format(PyExc_ImportError, "it needs Linux and Python 3.11 to 3.13: %s",
                        strerror(ENOSYS));
}

#endif
