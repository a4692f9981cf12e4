/* A look at this process's threads, taken by the main thread itself.
 *
 * A thread of C's own, which never needs the GIL, ticks: it notes the time, and what the kernel has
 * counted for each thread, and asks the interpreter to call `answer()`. The main thread does at the
 * next instruction that looks for such requests: where a function begins, at the end of a loop's
 * body, and after every call of C. So it gives the GIL to nobody, and is seen where it was at the
 * tick, be it in Python or in a call of C that has ended meanwhile. Operators, subscripts, `in` and
 * `with` don't look for requests: a product of arrays would be seen at the next line that calls
 * something. So the tick also takes a glimpse of the main thread's innermost frames, without the
 * GIL, and the answer, which has it, believes what of that can be verified. Where it has not answered
 * by the next tick, because it is in a long call or waits, the sampler's thread, which sleeps in `wait()`,
 * asks for the GIL, and looks itself, by `look()`. Where no thread has run since the last look, by
 * what the kernel says, nobody has to look again.
 *
 * What a look sees is one tuple for every thread that runs Python, appended to a list:
 *
 *     (thread, state, node, tick ns, on core ns, queued ns, wait, idle ns, idle ticks, places, codes)
 *
 * `thread` is the kernel's number; `state` the recorder's of that thread, or None, and `node` its
 * innermost open span; the times are those at the tick, -1 where they are not known; `wait` is what
 * the thread was blocked on at the tick, by the system call that it was in: a name of WAITS, "" where
 * it ran or was about to, None where the kernel does not tell; `idle` says
 * until when after the look before no thread ran, and how many ticks that were; `places` are the
 * bytes of one Place for every frame from the innermost out, and `codes` their code objects.
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
#include <time.h>
#include <unistd.h>

/* 3.14 is left out until this was tried on it: what is read here changes from version to version. */
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

#define CODE_UNIT 2 /* bytes of an instruction: since 3.13 the headers hide _Py_CODEUNIT */
#define MAX_FRAMES 128
#define MAX_THREADS 64 /* whose times are known */
#define MAX_SEEN 1024
#define MAX_GLIMPSED 4
#define MAX_KEPT 8192 /* a power of two */

enum { STOPPED, UNANSWERED, DUE };
/* What a thread is blocked on. The last one: on something else. */
enum { UNKNOWN, RUNS, SLEEP, LOCK, INTERPRETER, CHILD, DISK, NETWORK, PIPE, EVENTS, SOMETHING };
static const char *const WAITS[] = {NULL,   "",     "sleep",   "lock", "interpreter", "child",
                                    "disk", "network", "pipe", "events", "something"};

typedef struct {
    uint64_t code;
    int64_t instruction;
} Place;

typedef struct {
    unsigned long thread; /* 0: the slot is free */
    int file, calls; /* of its times, and of the system call that it is in; the second may be -1 */
    int wait;
    int64_t on_core, queued;
} Times;

typedef struct {
    int64_t until_ns;
    long ticks;
} Idle;

/* What the words of a frame were at a tick: to be compared, never to be followed. */
typedef struct {
    uintptr_t frame, code, instruction;
} Glimpsed;

typedef struct {
    int depth;
    Glimpsed frames[MAX_GLIMPSED]; /* from the innermost out */
} Glimpse;

/* hotloop.timing._recorder's: a borrowed State of a thread and its innermost open span's index. */
typedef PyObject *(*Current)(unsigned long thread, int32_t *node);

static Current current;
static PyObject *records;
static unsigned long main_ident, main_thread;
static PyThreadState *main_state;
static unsigned long own_thread; /* 0: not known yet, and nothing is looked at */
static int64_t interval_ns, due_ns, own_ns;
static uint64_t random_state;
static pthread_t ticker;
static int is_ticking; /* the GIL guards it */
static int is_asked;   /* and the main thread has not answered; atomic */
static int is_blind;   /* there are threads whose times are not known; atomic */

/* Guarded by the lock. `times` is what a tick reads into, `at_tick` what looks are told. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t stopped, told;
static int is_stopping, is_unanswered;
static int64_t tick_ns, taken_ns;
static Idle idle;
static Glimpse at_tick_seen;
static Times times[MAX_THREADS], at_tick[MAX_THREADS], at_look[MAX_THREADS];

static int64_t now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* ---- the kernel's times of threads ---- */

static void let_go(Times *slot) { __atomic_store_n(&slot->thread, 0, __ATOMIC_RELEASE); }

/* Of what a descriptor is: a call that waits in it waits for that. */
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
    return 0; /* its place is not told any more */
#else
#if PY_VERSION_HEX >= 0x030C0000
    struct _gil_runtime_state *gil = PyInterpreterState_Main()->ceval.gil;
#else
    struct _gil_runtime_state *gil = &_PyRuntime.ceval.gil;
#endif
    return address >= (uint64_t)(uintptr_t)gil && address < (uint64_t)(uintptr_t)(gil + 1);
#endif
}

/* By the kernel's words: "running", or a number and its arguments in hexadecimal. */
static int wait_of_call(const char *text) {
    char *rest;
    if (text[0] == 'r') return RUNS;
    long call = strtol(text, &rest, 10);
    uint64_t first = strtoull(rest, NULL, 16);
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

/* Only the ticker frees slots, and only looks, one at a time, take them. */
static void read_times(void) {
    for (Times *slot = times; slot < times + MAX_THREADS; slot++) {
        char text[64];
        unsigned long thread = __atomic_load_n(&slot->thread, __ATOMIC_ACQUIRE);
        if (thread == 0) continue;
        ssize_t size = pread(slot->file, text, sizeof text - 1, 0);
        if (size <= 0) {
            /* It has ended. Any other error is that of a file of the program's own, which has closed
               ours and got its number. */
            if (size < 0 && errno == ESRCH) {
                close(slot->file);
                if (slot->calls >= 0) close(slot->calls);
            }
            let_go(slot);
            continue;
        }
        text[size] = 0;
        char *rest;
        int64_t before = slot->on_core;
        slot->on_core = strtoll(text, &rest, 10);
        slot->queued = strtoll(rest, NULL, 10);
        slot->wait = UNKNOWN;
        if (slot->calls < 0 || before < 0) continue;
        size = pread(slot->calls, text, sizeof text - 1, 0);
        if (size <= 0) continue;
        text[size] = 0;
        slot->wait = wait_of_call(text);
    }
}

/* Have a thread's times read from the next tick on. False: they can't be. */
static int watch(unsigned long thread) {
    for (Times *slot = times; slot < times + MAX_THREADS; slot++) {
        if (__atomic_load_n(&slot->thread, __ATOMIC_ACQUIRE) != 0) continue;
        char path[64];
        snprintf(path, sizeof path, "/proc/self/task/%lu/schedstat", thread);
        slot->file = open(path, O_RDONLY | O_CLOEXEC);
        if (slot->file < 0) return 0;
        snprintf(path, sizeof path, "/proc/self/task/%lu/syscall", thread);
        slot->calls = open(path, O_RDONLY | O_CLOEXEC); /* some kernels don't have it */
        slot->wait = UNKNOWN;
        slot->on_core = slot->queued = -1; /* a tick may be about to tell of what it has not read */
        __atomic_store_n(&slot->thread, thread, __ATOMIC_RELEASE);
        return 1;
    }
    return 0;
}

/* ---- glimpses ---- */

#if PY_VERSION_HEX < 0x030D0000
/* Without the GIL: memory that is somebody else's by now, or nobody's. The kernel copies it, and says
   so where there is none. */
static int copy(void *to, const void *from, size_t size) {
    struct iovec here = {to, size}, there = {(void *)from, size};
    return process_vm_readv(getpid(), &here, 1, &there, 1, 0) == (ssize_t)size;
}

static const _PyInterpreterFrame *innermost(void) {
    _PyCFrame entered;
    const void *cframe = *(void *volatile *)&main_state->cframe;
    return copy(&entered, cframe, sizeof entered) ? entered.current_frame : NULL;
}

/* Frames stand still while they wait for the one that they have called: they belong together if that
   is still there when all are read. Where calls take no longer than reading, it may never be. */
static void glimpse(Glimpse *seen) {
    for (int tries = 0; main_state != NULL && tries < 6; tries++) {
        const _PyInterpreterFrame *first = innermost(), *at = first;
        seen->depth = 0;
        while (at != NULL && seen->depth < MAX_GLIMPSED) {
            _PyInterpreterFrame frame;
            if (!copy(&frame, at, offsetof(_PyInterpreterFrame, localsplus))) break;
            seen->frames[seen->depth++] =
                (Glimpsed){(uintptr_t)at, (uintptr_t)frame.f_code, (uintptr_t)frame.prev_instr};
            at = frame.previous;
        }
        _PyInterpreterFrame again;
        if (first != NULL && innermost() == first &&
            copy(&again, first, offsetof(_PyInterpreterFrame, localsplus)) &&
            (uintptr_t)again.f_code == seen->frames[0].code)
            return;
    }
    seen->depth = 0;
}

/* Code that was seen with the GIL is kept: then its address is its own for good. */
static PyCodeObject *kept[MAX_KEPT];
static int num_kept;

static PyCodeObject **slot_of(uintptr_t code) {
    size_t k = (code >> 4) * 0x9E3779B97F4A7C15u >> 51;
    while (kept[k % MAX_KEPT] != NULL && (uintptr_t)kept[k % MAX_KEPT] != code) k++;
    return &kept[k % MAX_KEPT];
}

static void keep(PyCodeObject *code) {
    PyCodeObject **slot = slot_of((uintptr_t)code);
    if (*slot != NULL || num_kept >= MAX_KEPT / 2) return;
    Py_INCREF(code);
    *slot = code;
    num_kept++;
}

/* Code that is written within another's: in a script, all functions and methods are in the module's. */
static PyCodeObject *find_within(PyCodeObject *code, uintptr_t wanted, int levels) {
    for (Py_ssize_t k = 0; levels > 0 && k < PyTuple_GET_SIZE(code->co_consts); k++) {
        PyObject *one = PyTuple_GET_ITEM(code->co_consts, k);
        if (!PyCode_Check(one)) continue;
        if ((uintptr_t)one == wanted) return (PyCodeObject *)one;
        PyCodeObject *found = find_within((PyCodeObject *)one, wanted, levels - 1);
        if (found != NULL) return found;
    }
    return NULL;
}

/* That of functions in a module's dictionary, and in those of its classes. */
static PyCodeObject *find_among(PyObject *names, uintptr_t wanted, int levels) {
    PyObject *name, *value;
    Py_ssize_t position = 0;
    while (PyDict_Next(names, &position, &name, &value)) {
        PyCodeObject *found = NULL;
        if (PyFunction_Check(value)) {
            found = (PyCodeObject *)PyFunction_GET_CODE(value);
            if ((uintptr_t)found != wanted) found = find_within(found, wanted, 2);
        } else if (levels > 1 && PyType_Check(value) && ((PyTypeObject *)value)->tp_dict != NULL) {
            found = find_among(((PyTypeObject *)value)->tp_dict, wanted, levels - 1);
        }
        if (found != NULL) return found;
    }
    return NULL;
}

/* What a frame that is there has called, if its code is one of those that it can be expected to be.
   What was not found is not looked for again at once. */
static PyCodeObject *called_by(const _PyInterpreterFrame *frame, PyCodeObject **codes, int depth,
                               uintptr_t wanted) {
    static uintptr_t missed[256];
    PyCodeObject *found = *slot_of(wanted);
    uintptr_t *miss = &missed[(wanted >> 4) * 0x9E3779B97F4A7C15u >> 56];
    if (found != NULL || *miss == wanted) return found;
    found = find_among(frame->f_globals, wanted, 2);
    for (int k = 0; found == NULL && k < depth; k++) found = find_within(codes[k], wanted, 3);
    if (found == NULL)
        *miss = wanted;
    else
        keep(found);
    return *slot_of(wanted);
}

/* The offset of an instruction of a code's; -1: it is none. */
static int64_t offset_in(PyCodeObject *code, uintptr_t instruction) {
    uintptr_t first = (uintptr_t)_PyCode_CODE(code);
    uintptr_t size = (uintptr_t)Py_SIZE(code) * CODE_UNIT;
    return instruction >= first && instruction < first + size ? (int64_t)(instruction - first) : -1;
}

/* Put the main thread back to where it was at the tick: the innermost of its frames that were there
   then at the instruction of then, and what has returned since before it. Returns the new depth. */
static int put_back(const Glimpse *seen, Place *places, PyCodeObject **codes,
                    const uintptr_t *frames, int depth) {
    for (int k = 0; k < seen->depth; k++) {
        const Glimpsed *was = &seen->frames[k];
        int same = 0;
        while (same < depth && (frames[same] != was->frame || (uintptr_t)codes[same] != was->code))
            same++;
        if (same == depth) continue;
        int64_t at = offset_in(codes[same], was->instruction);
        if (at < 0) return depth;
        /* Of what has returned, as far as it is known, from here in. */
        int inner = 0;
        while (inner < k) {
            const Glimpsed *one = &seen->frames[k - 1 - inner];
            PyCodeObject *code = called_by((const _PyInterpreterFrame *)was->frame, codes + same,
                                           depth - same, one->code);
            if (code == NULL || offset_in(code, one->instruction) < 0) break;
            inner++;
        }
        if (depth - same + inner > MAX_FRAMES) return depth;
        for (int j = 0; j < same; j++) Py_DECREF(codes[j]);
        memmove(codes + inner, codes + same, (size_t)(depth - same) * sizeof *codes);
        memmove(places + inner, places + same, (size_t)(depth - same) * sizeof *places);
        places[inner].instruction = at;
        for (int j = 0; j < inner; j++) {
            const Glimpsed *one = &seen->frames[k - inner + j];
            codes[j] = *slot_of(one->code);
            Py_INCREF(codes[j]);
            places[j] = (Place){one->code, offset_in(codes[j], one->instruction)};
        }
        return depth - same + inner;
    }
    return depth;
}
#else /* its frames are laid out anew with each version */
static void glimpse(Glimpse *seen) { seen->depth = 0; }
#endif

/* ---- looking; with the GIL ---- */

static int append(PyThreadState *of, int64_t at_ns, const Times *known, Idle was,
                  const Glimpse *seen, int *blind) {
    unsigned long thread = of->thread_id == main_ident ? main_thread : of->native_thread_id;
    if (thread == own_thread) return 0;
    PyFrameObject *frame = PyThreadState_GetFrame(of);
    if (frame == NULL) return 0;
    Place places[MAX_FRAMES];
    PyCodeObject *codes[MAX_FRAMES];
    int depth = 0;
#if PY_VERSION_HEX < 0x030D0000
    uintptr_t frames[MAX_FRAMES];
#endif
    while (frame != NULL && depth < MAX_FRAMES) {
        codes[depth] = PyFrame_GetCode(frame);
#if PY_VERSION_HEX < 0x030D0000
        frames[depth] = (uintptr_t)frame->f_frame;
#endif
        places[depth].code = (uint64_t)(uintptr_t)codes[depth];
        places[depth].instruction = PyFrame_GetLasti(frame);
        depth++;
        PyFrameObject *outer = PyFrame_GetBack(frame);
        Py_DECREF(frame);
        frame = outer;
    }
    Py_XDECREF(frame);
#if PY_VERSION_HEX < 0x030D0000
    if (of == main_state) {
        for (int k = 0; k < depth; k++) keep(codes[k]);
        depth = put_back(seen, places, codes, frames, depth);
    }
#endif
    int32_t node = 0;
    PyObject *state = current(thread, &node);
    const Times *slot = known;
    while (slot < known + MAX_THREADS && slot->thread != thread) slot++;
    int is_known = slot < known + MAX_THREADS;
    if (!is_known && !watch(thread)) *blind = 1;
    PyObject *all = PyTuple_New(depth);
    for (int k = 0; k < depth; k++)
        if (all != NULL)
            PyTuple_SET_ITEM(all, k, (PyObject *)codes[k]);
        else
            Py_DECREF(codes[k]);
    if (all == NULL) return -1;
    PyObject *record = Py_BuildValue(
        "(kOiLLLzLly#N)", thread, state == NULL ? Py_None : state, (int)node, (long long)at_ns,
        is_known ? (long long)slot->on_core : -1LL, is_known ? (long long)slot->queued : -1LL,
        is_known ? WAITS[slot->wait] : NULL,
        (long long)was.until_ns, was.ticks,
        (const char *)places, (Py_ssize_t)(depth * sizeof(Place)), all);
    if (record == NULL) return -1;
    int failed = PyList_Append(records, record);
    Py_DECREF(record);
    return failed;
}

/* All threads of the main interpreter's; -1: another thread has the list. None of them ends as long
   as this one keeps the GIL, but one that C has made may just be entering itself. */
static int list_threads(PyThreadState **threads) {
    int count = 0;
#if PY_VERSION_HEX < 0x030C0000
    /* Later on a thread is in the list when it is complete. Not waited for: who has the lock may be
       waiting for the GIL (CPython's issue 106883). */
    PyThread_type_lock mutex = _PyRuntime.interpreters.mutex;
    if (!PyThread_acquire_lock(mutex, NOWAIT_LOCK)) return -1;
#endif
    PyThreadState *one = PyInterpreterState_ThreadHead(PyInterpreterState_Main());
    for (; one != NULL && count < MAX_SEEN; one = PyThreadState_Next(one)) threads[count++] = one;
#if PY_VERSION_HEX < 0x030C0000
    PyThread_release_lock(mutex);
#endif
    return count;
}

/* Once for a tick, by whoever comes first. */
static int take(void) {
    static Times known[MAX_THREADS]; /* the GIL guards it, and the other */
    static PyThreadState *threads[MAX_SEEN];
    int count = list_threads(threads);
    if (count < 0) return 0;
    pthread_mutex_lock(&lock);
    int64_t at_ns = tick_ns;
    int is_new = at_ns > taken_ns && records != NULL && own_thread != 0;
    Idle was = idle;
    Glimpse seen = at_tick_seen;
    if (is_new) {
        taken_ns = at_ns;
        idle = (Idle){0};
        memcpy(known, at_tick, sizeof known);
        memcpy(at_look, at_tick, sizeof at_look);
    }
    pthread_mutex_unlock(&lock);
    if (!is_new) return 0;
    int failed = 0, blind = 0;
    /* A finalizer could let go of the GIL, and the thread that is being looked at end. */
    int collects = PyGC_Disable();
    for (int k = 0; k < count && !failed; k++)
        failed = append(threads[k], at_ns, known, was, &seen, &blind);
    if (collects) PyGC_Enable();
    __atomic_store_n(&is_blind, blind, __ATOMIC_RELAXED);
    return failed;
}

/* In the main thread, when the interpreter gets to it. */
static int answer(void *Py_UNUSED(ignored)) {
    if (!__atomic_exchange_n(&is_asked, 0, __ATOMIC_ACQ_REL)) return 0;
    int64_t began = now();
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    if (take() < 0) PyErr_Clear(); /* no memory: the program will notice */
    PyErr_Restore(type, value, traceback);
    __atomic_fetch_add(&own_ns, now() - began, __ATOMIC_RELAXED);
    return 0;
}

static PyObject *look(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(ignored)) {
    /* It has answered while this thread waited for the GIL. */
    if (__atomic_load_n(&is_asked, __ATOMIC_ACQUIRE) && take() < 0) return NULL;
    Py_RETURN_NONE;
}

/* ---- the ticker ---- */

/* Ticks keep no step with a program that goes round and round: gaps of 0.5 to 1.5 intervals. */
static int64_t next_gap(void) {
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return interval_ns / 2 + (int64_t)(random_state % (uint64_t)(interval_ns + 1));
}

/* With the lock. True where the end came, or what is waited for. */
static int wait_until(int64_t ns, pthread_cond_t *condition, const int *what) {
    struct timespec t = {.tv_sec = ns / 1000000000, .tv_nsec = ns % 1000000000};
    while (!is_stopping && (what == NULL || !*what))
        if (pthread_cond_timedwait(condition, &lock, &t) != 0) break;
    return is_stopping || (what != NULL && *what);
}

/* False: others have asked for so much that there is no room. */
static int ask(void) {
#if PY_VERSION_HEX < 0x030C0000
    /* The public one reads the state of the thread that has the GIL, which may be ending. */
    if (_PyEval_AddPendingCall(PyInterpreterState_Main(), answer, NULL) < 0) return 0;
#else
    if (Py_AddPendingCall(answer, NULL) < 0) return 0;
#endif
#if PY_VERSION_HEX < 0x030D0000
    /* Before 3.13, a call that another thread asks for raises no flag, and would wait for the main
       thread's next taking of the GIL: after NumPy's or torch's operations, that is. */
    _Py_atomic_store_relaxed(&PyInterpreterState_Main()->ceval.eval_breaker, 1);
#endif
    return 1;
}

/* Whether any thread has, since the last look, or may have: not all of them are known before the
   first, and where the kernel does not tell (some say 0 instead). */
static int has_run(void) {
    if (taken_ns == 0 || __atomic_load_n(&is_blind, __ATOMIC_RELAXED)) return 1;
    for (int k = 0; k < MAX_THREADS; k++)
        if (times[k].thread != at_look[k].thread ||
            (times[k].thread != 0 &&
             (times[k].on_core <= 0 || times[k].on_core != at_look[k].on_core)))
            return 1;
    return 0;
}

static void *tick(void *Py_UNUSED(ignored)) {
    int64_t before_ns = 0;
    prctl(PR_SET_NAME, "hotloop-ticks");
    prctl(PR_SET_TIMERSLACK, 1); /* Linux may wake a thread 50 us late, to wake several at once */
    pthread_mutex_lock(&lock);
    while (!wait_until(due_ns, &stopped, NULL)) {
        pthread_mutex_unlock(&lock);
        struct timespec t;
        clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
        int64_t took_ns = (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
        __atomic_fetch_add(&own_ns, took_ns - before_ns, __ATOMIC_RELAXED);
        before_ns = took_ns;
        Glimpse seen;
        glimpse(&seen);
        read_times();
        int64_t at_ns = now();
        due_ns += next_gap();
        if (due_ns < at_ns) due_ns = at_ns + next_gap(); /* others had the cores */
        pthread_mutex_lock(&lock);
        if (__atomic_load_n(&is_asked, __ATOMIC_ACQUIRE) && !has_run()) {
            idle.until_ns = at_ns;
            idle.ticks++;
            continue;
        }
        tick_ns = at_ns;
        at_tick_seen = seen;
        memcpy(at_tick, times, sizeof times);
        if (__atomic_exchange_n(&is_asked, 1, __ATOMIC_ACQ_REL)) {
            is_unanswered = 1;
            pthread_cond_signal(&told);
        } else if (!ask()) {
            __atomic_store_n(&is_asked, 0, __ATOMIC_RELEASE);
        }
    }
    pthread_mutex_unlock(&lock);
    return NULL;
}

static PyObject *start(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(ignored)) {
    if (is_ticking) Py_RETURN_NONE;
    is_stopping = 0;
    own_thread = 0;
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
    pthread_cond_broadcast(&stopped);
    pthread_cond_broadcast(&told);
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

/* It also writes: every time that it lets go of the GIL it has to wait for it again. */
static PyObject *wait_for(PyObject *Py_UNUSED(module), PyObject *args) {
    long long until_ns;
    int file;
    Py_buffer data;
    if (!PyArg_ParseTuple(args, "Liy*", &until_ns, &file, &data)) return NULL;
    int why = STOPPED, failed;
    Py_BEGIN_ALLOW_THREADS;
    failed = write_all(file, data.buf, data.len);
    if (!failed) {
        pthread_mutex_lock(&lock);
        int is_told = wait_until(until_ns, &told, &is_unanswered);
        why = !is_told ? DUE : is_stopping ? STOPPED : UNANSWERED;
        is_unanswered = 0;
        pthread_mutex_unlock(&lock);
    }
    Py_END_ALLOW_THREADS;
    PyBuffer_Release(&data);
    if (!failed) return PyLong_FromLong(why);
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
    /* A forked child may have got the lock as it was held. */
    pthread_mutex_t fresh = PTHREAD_MUTEX_INITIALIZER;
    lock = fresh;
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&stopped, &attributes);
    pthread_cond_init(&told, &attributes);
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
    taken_ns = own_ns = 0; /* of a forked child's parent */
    random_state = (uint64_t)due_ns * 0x9E3779B97F4A7C15u | 1;
    is_ticking = is_stopping = is_asked = is_unanswered = is_blind = 0;
    own_thread = 0;
    Py_RETURN_NONE;
}

static PyObject *enter(PyObject *Py_UNUSED(module), PyObject *args) {
    if (!PyArg_ParseTuple(args, "k", &own_thread)) return NULL;
    Py_RETURN_NONE;
}

static PyObject *end(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(ignored)) {
    Py_CLEAR(records);
    for (Times *slot = times; slot < times + MAX_THREADS; slot++)
        if (slot->thread != 0) {
            close(slot->file);
            if (slot->calls >= 0) close(slot->calls);
            let_go(slot);
        }
    memset(at_tick, 0, sizeof at_tick);
    memset(at_look, 0, sizeof at_look);
    idle = (Idle){0};
    Py_RETURN_NONE;
}

/* At one go: a look between the two would be taken for the one before. */
static PyObject *swap(PyObject *Py_UNUSED(module), PyObject *list) {
    if (!PyList_CheckExact(list)) {
        PyErr_SetString(PyExc_TypeError, "expected a list");
        return NULL;
    }
    PyObject *before = records;
    if (before == NULL) return Py_BuildValue("(NLl)", PyList_New(0), 0LL, 0L);
    Py_INCREF(list);
    records = list;
    pthread_mutex_lock(&lock);
    Idle was = idle;
    idle = (Idle){0};
    pthread_mutex_unlock(&lock);
    return Py_BuildValue("(NLl)", before, (long long)was.until_ns, was.ticks);
}

static PyObject *cost_ns(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(ignored)) {
    return PyLong_FromLongLong(__atomic_load_n(&own_ns, __ATOMIC_RELAXED));
}

/* Whether a thread that runs Python calls a function of somebody's at every call or line. */
static PyObject *is_traced(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(ignored)) {
    static PyThreadState *threads[MAX_SEEN]; /* the GIL guards it */
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
    /* Some belong to no line, as a loop's way back to its head does: they follow one that does. */
    while (line < 0 && instruction >= CODE_UNIT) {
        instruction -= CODE_UNIT;
        line = PyCode_Addr2Line(code, instruction);
    }
    return PyLong_FromLong(line);
}

static PyMethodDef methods[] = {
    {"begin", begin, METH_VARARGS,
     "begin(records, interval_s, ident, thread): of the main thread, for Python and the kernel."},
    {"start", start, METH_NOARGS, "Tick."},
    {"stop", stop, METH_NOARGS, "Tick no more; `wait()` returns."},
    {"end", end, METH_NOARGS, "Let go of everything."},
    {"enter", enter, METH_VARARGS, "enter(thread): the sampler's own, which is not looked at."},
    {"wait", wait_for, METH_VARARGS,
     "wait(until_ns, file, data): write the data, then wait until the end (STOPPED), the main\n"
     "thread has not answered (UNANSWERED), or a time has come (DUE)."},
    {"look", look, METH_NOARGS, "Take the look that was not answered."},
    {"swap", swap, METH_O,
     "Have looks appended to another list; returns the one before, until when after its last look\n"
     "no thread has run, and how many ticks that were."},
    {"cost_ns", cost_ns, METH_NOARGS, "What ticks and answers have taken."},
    {"is_traced", is_traced, METH_NOARGS,
     "Whether a thread has a trace or a profile function (`sys.settrace`, `sys.setprofile`)."},
    {"line_of", line_of, METH_VARARGS, "line_of(code, instruction): by the byte's offset; of one that has none, the last before it."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "hotloop.profiler.collect._ticker",
    .m_doc = "Looks at this process's threads.",
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
    /* By strerror the library links with libc: auditwheel refuses one that links with none. */
    return PyErr_Format(PyExc_ImportError, "it needs Linux and Python 3.11 to 3.13: %s",
                        strerror(ENOSYS));
}

#endif
