/* The recorder in C, which contains only the code that runs at every span.
 *
 * Python (_control, _writer) handles files, segments, names, and the start and end of threads.
 * It is called for a thread's first span and for each new node. _format documents the file format.
 * The constants below are copies of those in _format, and a test compares them.
 *
 * The state of a thread is behind one thread-local pointer, which is valid while the thread's
 * generation equals the module's. `reset()` increments the latter, so old pointers are not used.
 * The GIL protects everything else. A call into Python may release it, so such calls hold a
 * reference and check the generation again afterwards.
 *
 * The memory of a recording is a file, which other processes may overwrite or truncate. So this code
 * follows no number that it reads from there, and `guard()` handles the signal of truncated maps.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <errno.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#define PERIOD 4096
#define MAX_DEPTH 64
#define T_HIST 8
#define NUM_BUCKETS (41 * 8)
#define BUCKET_SHIFT 49
#define BUCKET_BASE ((1023 + 3) << 3)
#define ROW_WORDS (T_HIST + NUM_BUCKETS)
#define S_FOLDED 6
#define S_UNNAMED 11
#define MAX_SPANS 4096
#define OVERFLOW_NAME "(more spans)"

enum { T_COUNT, T_TOTAL, T_MIN, T_MAX, T_LAST_START };

typedef struct {
    int64_t start, node, end;
} Event;

/* A name and a kind. All threads and nodes share one object. Each thread tracks its open spans. */
typedef struct {
    PyObject_HEAD
    PyObject *name, *kind;
    PyObject *enter, *exit; /* bound once, because bound methods for each `with` cost 2 x 25 ns */
} Span;

typedef struct Node {
    struct Node *parent;
    struct Node *overflow; /* the child for spans that do not fit in the table */
    Span *span;            /* NULL at the root */
    Span *entered;         /* the open span, different from `span` only in overflow nodes */
    int64_t start;
    int32_t index; /* in the segment's table; -1: not counted, and freed on exit */
    int32_t depth;
} Node;

typedef struct State {
    PyObject_HEAD
    PyObject *segment;
    struct State *previous, *next; /* list of all states */
    Py_buffer view;
    int64_t *words, *opens;
    Event *ring;
    int64_t *banks[2];
    int64_t position, limit, capacity;
    int64_t folded; /* as in the file: twice the number of folded events, plus the current bank */
    int32_t num_nodes, node_capacity;
    uint32_t hash_mask;
    Node *current;
    Node **table; /* (parent, span) -> node, open addressing, at most a quarter full */
    Node *nodes;
    uint64_t generation; /* generation in which it was attached to a thread; 0: never */
    unsigned long thread; /* native id of the thread that it is attached to, or 0 */
    int is_adding_node;   /* while Python adds a node to the segment's table */
} State;

static PyTypeObject SpanType, StateType, SpanMethodType;
static PyObject *attach_hook, *decorate_hook, *check_hook, *span_function;
static PyObject *spans[3]; /* by kind: name -> Span */
static PyObject *kind_names[3];
static Span *overflow_span;
static uint64_t generation = 1;

static State *all_states;
static _Thread_local State *thread_state;
static _Thread_local uint64_t thread_generation;

static inline int64_t now(void) {
#ifdef __APPLE__
    return (int64_t)clock_gettime_nsec_np(CLOCK_UPTIME_RAW); /* time.monotonic_ns() there */
#else
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
#endif
}

/* ---- events and totals ---- */

static void fold(State *s) {
    int64_t *from = s->banks[s->folded & 1], *to = s->banks[1 - (s->folded & 1)];
    int64_t floor_ns = INT64_MAX;
    memcpy(to, from, (size_t)(s->num_nodes + 1) * ROW_WORDS * 8);
    for (const Event *e = s->ring + s->limit - PERIOD; e < s->ring + s->limit; e++) {
        int64_t node = e->node, bits;
        if (node <= 0 || node >= s->num_nodes) continue; /* another process has overwritten it */
        int64_t *row = to + (node + 1) * ROW_WORDS;
        int64_t duration = e->end > e->start ? (int64_t)((uint64_t)e->end - (uint64_t)e->start) : 0;
        double as_double = (double)duration;
        if (row[T_COUNT] == 0 || duration < row[T_MIN]) row[T_MIN] = duration;
        if (duration > row[T_MAX]) row[T_MAX] = duration;
        if (e->start > row[T_LAST_START]) row[T_LAST_START] = e->start;
        if (e->end < floor_ns) floor_ns = e->end;
        row[T_COUNT]++;
        row[T_TOTAL] += duration;
        memcpy(&bits, &as_double, 8);
        bits = (bits >> BUCKET_SHIFT) - BUCKET_BASE;
        row[T_HIST + (bits < 0 ? 0 : bits >= NUM_BUCKETS ? NUM_BUCKETS - 1 : bits)]++;
    }
    to[0] = floor_ns;
    s->folded = 2 * ((s->folded >> 1) + PERIOD) + 1 - (s->folded & 1);
    __atomic_store_n(&s->words[S_FOLDED], s->folded, __ATOMIC_RELEASE);
}

static inline void record(State *s, const Node *node, int64_t end) {
    if (s->position == s->limit) {
        fold(s);
        s->position = s->limit % s->capacity;
        s->limit = s->position + PERIOD;
    }
    Event *e = s->ring + s->position++;
    e->start = node->start;
    e->node = node->index;
    __atomic_store_n(&e->end, end, __ATOMIC_RELEASE); /* commits the event */
}

/* ---- nodes ---- */

static inline uint32_t slot_of(const Node *parent, const Span *span) {
    uint64_t key = ((uint64_t)(uintptr_t)span >> 4) * 0x9E3779B97F4A7C15u;
    return (uint32_t)(key >> 32) + (uint32_t)parent->index * 0x85EBCA6Bu;
}

static void insert(State *s, Node *node) {
    uint32_t slot = slot_of(node->parent, node->span) & s->hash_mask;
    while (s->table[slot] != NULL) slot = (slot + 1) & s->hash_mask;
    s->table[slot] = node;
}

static void rebuild_table(State *s) {
    memset(s->table, 0, (s->hash_mask + 1) * sizeof(Node *));
    for (Node *node = s->nodes + 1; node < s->nodes + s->num_nodes; node++)
        if (node->span != NULL && node != node->parent->overflow) insert(s, node);
}

static Node *new_node(State *s, Node *parent, Span *span) {
    s->is_adding_node = 1;
    PyObject *number = PyObject_CallMethod(s->segment, "add_node", "iOO", (int)parent->index,
                                           span->name, span->kind);
    s->is_adding_node = 0;
    if (number == NULL) return NULL;
    long index = PyLong_AsLong(number);
    Py_DECREF(number);
    if (index < 0 || index >= s->node_capacity) {
        if (!PyErr_Occurred()) PyErr_SetString(PyExc_SystemError, "a node index is out of range");
        return NULL;
    }
    Node *node = s->nodes + index;
    *node = (Node){.parent = parent, .span = span, .depth = parent->depth + 1};
    node->index = (int32_t)(node - s->nodes);
    s->num_nodes = node->index + 1;
    Py_INCREF(span);
    return node;
}

static inline Node *look_up(const State *s, const Span *span) {
    const Node *parent = s->current;
    if (parent->index < 0) return NULL;
    uint32_t slot = slot_of(parent, span) & s->hash_mask;
    for (Node *node; (node = s->table[slot]) != NULL; slot = (slot + 1) & s->hash_mask)
        if (node->span == span && node->parent == parent) return node;
    return NULL;
}

/* Return the child for a span that is not in the table, or NULL with an exception set. */
static Node *find_node(State *s, Span *span) {
    Node *parent = s->current;
    if (parent->index >= 0) {
        /* The cache of spans is cleared when it is full, so a name may have a new object. */
        for (Node *node = s->nodes + 1; node < s->nodes + s->num_nodes; node++) {
            if (node->parent != parent || node == parent->overflow || node->span == NULL ||
                node->span->kind != span->kind ||
                PyUnicode_Compare(node->span->name, span->name) != 0)
                continue;
            Span *old = node->span;
            Py_INCREF(span);
            node->span = span;
            Py_DECREF(old);
            rebuild_table(s);
            return node;
        }
    }
    int inside_overflow = parent->index < 0 || (parent->span == overflow_span && parent->parent &&
                                                parent->parent->overflow == parent);
    /* Spans opened by a signal handler or a finalizer while a node is added get no node. */
    if (!inside_overflow && !s->is_adding_node) {
        if (s->num_nodes < s->node_capacity - s->node_capacity / 8 && parent->depth < MAX_DEPTH) {
            Node *node = new_node(s, parent, span);
            if (node == NULL) return NULL;
            insert(s, node);
            return node;
        }
        if (parent->overflow == NULL && s->num_nodes < s->node_capacity) {
            parent->overflow = new_node(s, parent, overflow_span);
            if (parent->overflow == NULL) return NULL;
        }
        if (parent->overflow != NULL) return parent->overflow;
    }
    Node *node = PyMem_Calloc(1, sizeof(Node));
    if (node == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    node->parent = parent;
    node->span = span;
    node->index = -1;
    node->depth = parent->depth + 1;
    Py_INCREF(span);
    s->words[S_UNNAMED]++;
    return node;
}

/* Leave the innermost span. */
static inline void pop(State *s, int64_t end) {
    Node *node = s->current;
    s->current = node->parent;
    if (node->index >= 0) {
        record(s, node, end);
    } else {
        Py_DECREF(node->span);
        PyMem_Free(node);
    }
}

/* ---- entry and exit ---- */

static State *attach(void) {
    for (;;) {
        uint64_t attach_generation = generation;
        PyObject *state = PyObject_CallNoArgs(attach_hook);
        if (state == NULL) return NULL;
        if (!PyObject_TypeCheck(state, &StateType)) {
            PyErr_SetString(PyExc_TypeError, "the hook must return a RecorderState");
            Py_DECREF(state);
            return NULL;
        }
        if (attach_generation == generation) {
            thread_state = (State *)state;
            thread_generation = thread_state->generation = generation;
            thread_state->thread = PyThread_get_thread_native_id();
            Py_DECREF(state); /* its segment holds a reference */
            return thread_state;
        }
        Py_DECREF(state); /* its recording ended in between */
    }
}

static int enter_slow_path(Span *span) {
    if (thread_generation != generation && attach() == NULL) return -1;
    State *s = thread_state;
    uint64_t enter_generation = generation;
    Py_INCREF(s);
    Node *node = look_up(s, span);
    if (node == NULL && (node = find_node(s, span)) == NULL) {
        Py_DECREF(s);
        return -1;
    }
    if (enter_generation == generation) {
        s->current = node;
        node->entered = span;
        node->start = now();
        if (node->index >= 0) s->opens[node->index] = node->start;
    } else if (node->index < 0) { /* another thread started a new recording in between */
        Py_DECREF(node->span);
        PyMem_Free(node);
    }
    Py_DECREF(s);
    return 0;
}

static PyObject *span_enter(PyObject *self, PyObject *Py_UNUSED(ignored)) {
    Span *span = (Span *)self;
    if (thread_generation == generation) {
        State *s = thread_state;
        Node *node = look_up(s, span);
        if (node != NULL) {
            s->current = node;
            node->entered = span;
            s->opens[node->index] = node->start = now();
            Py_INCREF(self);
            return self;
        }
    }
    if (enter_slow_path(span) < 0) return NULL;
    Py_INCREF(self);
    return self;
}

static PyObject *span_exit(PyObject *self, PyObject *const *Py_UNUSED(args),
                           Py_ssize_t Py_UNUSED(nargs)) {
    int64_t end = now();
    if (thread_generation == generation) {
        State *s = thread_state;
        Span *span = (Span *)self;
        const Node *node = s->current;
        while (node != NULL && node->entered != span) node = node->parent;
        /* NULL: never entered here, or already ended with a span around it. */
        if (node != NULL) {
            while (s->current != node) pop(s, end);
            pop(s, end);
        }
    }
    Py_RETURN_NONE;
}

static PyMethodDef enter_def = {"__enter__", span_enter, METH_NOARGS, NULL};
static PyMethodDef exit_def = {"__exit__", (PyCFunction)(void (*)(void))span_exit, METH_FASTCALL,
                               NULL};

/* ---- Span, and the descriptors of its __enter__ and __exit__ ---- */

typedef struct {
    PyObject_HEAD
    int is_exit;
} SpanMethod;

static PyObject *span_method_get(PyObject *self, PyObject *object, PyObject *Py_UNUSED(type)) {
    PyObject *method = self;
    if (object != NULL && Py_TYPE(object) == &SpanType)
        method = ((SpanMethod *)self)->is_exit ? ((Span *)object)->exit : ((Span *)object)->enter;
    Py_INCREF(method);
    return method;
}

/* Span.__enter__(span), as contextlib.ExitStack calls it */
static PyObject *span_method_call(PyObject *self, PyObject *args, PyObject *Py_UNUSED(kwargs)) {
    if (PyTuple_GET_SIZE(args) < 1 || Py_TYPE(PyTuple_GET_ITEM(args, 0)) != &SpanType) {
        PyErr_SetString(PyExc_TypeError, "expected a span: call it as `with span(name):` does");
        return NULL;
    }
    PyObject *span = PyTuple_GET_ITEM(args, 0);
    return ((SpanMethod *)self)->is_exit ? span_exit(span, NULL, 0) : span_enter(span, NULL);
}

static PyTypeObject SpanMethodType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "hotloop.timing._recorder._SpanMethod",
    .tp_basicsize = sizeof(SpanMethod),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_descr_get = span_method_get,
    .tp_call = span_method_call,
};

static int span_traverse(Span *self, visitproc visit, void *arg) {
    Py_VISIT(self->enter);
    Py_VISIT(self->exit);
    return 0;
}

static int span_clear(Span *self) {
    Py_CLEAR(self->enter);
    Py_CLEAR(self->exit);
    return 0;
}

static void span_dealloc(Span *self) {
    PyObject_GC_UnTrack(self);
    Py_XDECREF(self->name);
    Py_XDECREF(self->kind);
    Py_XDECREF(self->enter);
    Py_XDECREF(self->exit);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyObject *span_repr(Span *self) {
    return PyUnicode_FromFormat("span(%R, kind=%R)", self->name, self->kind);
}

static PyObject *span_call(Span *self, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"function", NULL};
    PyObject *function;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O", names, &function)) return NULL;
    return PyObject_CallFunctionObjArgs(decorate_hook, span_function, self->name, self->kind,
                                        function, NULL);
}

static PyObject *span_get(Span *self, void *offset) {
    PyObject *value = *(PyObject **)((char *)self + (size_t)offset);
    Py_INCREF(value);
    return value;
}

static PyGetSetDef span_getset[] = {
    {"name", (getter)span_get, NULL, NULL, (void *)offsetof(Span, name)},
    {"kind", (getter)span_get, NULL, NULL, (void *)offsetof(Span, kind)},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyTypeObject SpanType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "hotloop.timing._recorder.Span",
    .tp_doc = "A named block of time, created by span().",
    .tp_basicsize = sizeof(Span),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_dealloc = (destructor)span_dealloc,
    .tp_traverse = (traverseproc)span_traverse,
    .tp_clear = (inquiry)span_clear,
    .tp_repr = (reprfunc)span_repr,
    .tp_call = (ternaryfunc)span_call,
    .tp_getset = span_getset,
};

static Span *make_span(PyObject *name, PyObject *kind) {
    Span *self = (Span *)SpanType.tp_alloc(&SpanType, 0);
    if (self == NULL) return NULL;
    Py_INCREF(name);
    Py_INCREF(kind);
    self->name = name;
    self->kind = kind;
    self->enter = PyCFunction_New(&enter_def, (PyObject *)self);
    self->exit = PyCFunction_New(&exit_def, (PyObject *)self);
    if (self->enter == NULL || self->exit == NULL) {
        Py_DECREF(self);
        return NULL;
    }
    return self;
}

static PyObject *span_slow_path(PyObject *name, PyObject *kind) {
    PyObject *checked = PyObject_CallFunctionObjArgs(check_hook, name, kind, NULL);
    if (checked == NULL) return NULL;
    Py_DECREF(checked);
    for (int k = 0; k < 3; k++) {
        int same = PyObject_RichCompareBool(kind, kind_names[k], Py_EQ);
        if (same < 0) return NULL;
        if (!same) continue;
        PyObject *found = PyDict_GetItemWithError(spans[k], name);
        if (found == NULL && PyErr_Occurred()) return NULL;
        if (found != NULL) {
            Py_INCREF(found);
            return found;
        }
        if (PyDict_GET_SIZE(spans[k]) >= MAX_SPANS) PyDict_Clear(spans[k]); /* generated names */
        Span *span = make_span(name, kind_names[k]);
        if (span != NULL && PyDict_SetItem(spans[k], name, (PyObject *)span) < 0)
            Py_CLEAR(span);
        return (PyObject *)span;
    }
    Py_UNREACHABLE();
}

static PyObject *open_span(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t nargs,
                           PyObject *kwnames) {
    PyObject *name = nargs > 0 ? args[0] : NULL, *kind = nargs > 1 ? args[1] : NULL;
    Py_ssize_t num_keywords = kwnames == NULL ? 0 : PyTuple_GET_SIZE(kwnames);
    for (Py_ssize_t i = 0; i < num_keywords; i++) {
        PyObject *keyword = PyTuple_GET_ITEM(kwnames, i);
        if (kind == NULL && PyUnicode_CompareWithASCIIString(keyword, "kind") == 0)
            kind = args[nargs + i];
        else if (name == NULL && PyUnicode_CompareWithASCIIString(keyword, "name") == 0)
            name = args[nargs + i];
        else
            return PyErr_Format(PyExc_TypeError,
                                "span() takes (name, kind='work'), got the argument %R", keyword);
    }
    if (nargs > 2 || name == NULL)
        return PyErr_Format(PyExc_TypeError, "span() takes (name, kind='work'), got %zd arguments",
                            nargs);
    int k = kind == NULL || kind == kind_names[0] ? 0
            : kind == kind_names[1]               ? 1
            : kind == kind_names[2]               ? 2
                                                  : 3;
    if (k < 3 && PyUnicode_CheckExact(name)) {
        PyObject *found = PyDict_GetItemWithError(spans[k], name);
        if (found != NULL) {
            Py_INCREF(found);
            return found;
        }
        if (PyErr_Occurred()) return NULL;
    }
    return span_slow_path(name, kind == NULL ? kind_names[0] : kind);
}

/* ---- State ---- */

static void unwind(State *s) {
    while (s->current != NULL && s->current->index < 0) {
        Node *node = s->current;
        s->current = node->parent;
        Py_DECREF(node->span);
        PyMem_Free(node);
    }
    s->current = s->nodes;
}

static void state_dealloc(State *self) {
    if (self->next != NULL) self->next->previous = self->previous;
    if (self->previous != NULL) self->previous->next = self->next;
    if (self == all_states) all_states = self->next;
    if (self->nodes != NULL) {
        unwind(self);
        for (int32_t i = 1; i < self->num_nodes; i++) Py_XDECREF(self->nodes[i].span);
    }
    PyMem_Free(self->nodes);
    PyMem_Free(self->table);
    if (self->view.obj != NULL) PyBuffer_Release(&self->view);
    Py_XDECREF(self->segment);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyObject *state_new(PyTypeObject *type, PyObject *args, PyObject *Py_UNUSED(kwargs)) {
    PyObject *segment;
    if (!PyArg_ParseTuple(args, "O", &segment)) return NULL;
    State *self = (State *)type->tp_alloc(type, 0);
    PyObject *buffer = PyObject_GetAttrString(segment, "buffer");
    PyObject *layout = PyObject_GetAttrString(segment, "layout");
    Py_ssize_t opens, ring, bank_a, bank_b, size;
    if (self == NULL || buffer == NULL || layout == NULL) goto failed;
    int node_capacity;
    long long capacity;
    if (!PyArg_ParseTuple(layout, "Linnnnn", &capacity, &node_capacity, &opens, &ring, &bank_a,
                          &bank_b, &size))
        goto failed;
    if (PyObject_GetBuffer(buffer, &self->view, PyBUF_WRITABLE) < 0) goto failed;
    if (self->view.len < size) {
        PyErr_SetString(PyExc_ValueError, "the segment's buffer is smaller than its layout");
        goto failed;
    }
    char *base = self->view.buf;
    self->words = (int64_t *)base;
    self->opens = (int64_t *)(base + opens);
    self->ring = (Event *)(base + ring);
    self->banks[0] = (int64_t *)(base + bank_a);
    self->banks[1] = (int64_t *)(base + bank_b);
    self->capacity = capacity;
    self->limit = PERIOD;
    self->node_capacity = node_capacity;
    self->num_nodes = 1;
    uint32_t slots = 64;
    while (slots < 4 * (uint32_t)node_capacity) slots *= 2;
    self->hash_mask = slots - 1;
    self->table = PyMem_Calloc(slots, sizeof(Node *));
    self->nodes = PyMem_Calloc((size_t)node_capacity, sizeof(Node));
    if (self->table == NULL || self->nodes == NULL) {
        PyErr_NoMemory();
        goto failed;
    }
    self->current = self->nodes;
    Py_INCREF(segment);
    self->segment = segment;
    self->next = all_states;
    if (all_states != NULL) all_states->previous = self;
    all_states = self;
    Py_DECREF(buffer);
    Py_DECREF(layout);
    return (PyObject *)self;
failed:
    Py_XDECREF(buffer);
    Py_XDECREF(layout);
    Py_XDECREF(self);
    return NULL;
}

static PyObject *state_rewind(State *self, PyObject *Py_UNUSED(ignored)) {
    unwind(self);
    self->thread = 0; /* `attach` sets it */
    Py_RETURN_NONE;
}

static PyObject *state_retire(State *Py_UNUSED(self), PyObject *Py_UNUSED(ignored)) {
    Py_RETURN_NONE;
}

/* The caller holds the GIL, so the state's thread is not inside a function of this module. */
static int32_t current_node(const State *self) {
    const Node *node = self->current;
    while (node->index < 0) node = node->parent;
    return node->index;
}

static PyObject *state_current(State *self, PyObject *Py_UNUSED(ignored)) {
    return PyLong_FromLong(current_node(self));
}

/* Return the State of a thread (borrowed) by native id, and its current node. For samplers. */
static PyObject *find_current(unsigned long thread, int32_t *node) {
    for (State *s = all_states; s != NULL; s = s->next) {
        if (s->generation != generation || s->thread != thread) continue;
        *node = current_node(s);
        return (PyObject *)s;
    }
    return NULL;
}

static PyObject *(*current_function)(unsigned long, int32_t *) = find_current;

static PyObject *state_segment(State *self, void *Py_UNUSED(ignored)) {
    Py_INCREF(self->segment);
    return self->segment;
}

static PyGetSetDef state_getset[] = {
    {"segment", (getter)state_segment, NULL, "The segment to write into.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMethodDef state_methods[] = {
    {"current", (PyCFunction)state_current, METH_NOARGS,
     "Return the node index of the innermost open span that is counted, 0 if there is none."},
    {"rewind", (PyCFunction)state_rewind, METH_NOARGS,
     "Return to the root of the tree when a thread ends or begins."},
    {"retire", (PyCFunction)state_retire, METH_NOARGS,
     "Stop writing. Does nothing, because no thread uses the state after a reset."},
    {NULL, NULL, 0, NULL},
};

static PyTypeObject StateType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "hotloop.timing._recorder.RecorderState",
    .tp_doc = "The recorder of one thread, which writes into a segment.",
    .tp_basicsize = sizeof(State),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = state_new,
    .tp_dealloc = (destructor)state_dealloc,
    .tp_methods = state_methods,
    .tp_getset = state_getset,
};

/* ---- files that other processes truncate ---- */

#define MAX_GUARDS 4096

static struct {
    uintptr_t start; /* 0: unused */
    size_t size;
} guards[MAX_GUARDS];
/* The handlers below ours. A program may install another handler over ours, such as that of
 * `faulthandler`, which passes the signal on to ours. So the handler that we install over it differs
 * from the first: otherwise the two would call each other forever. */
#define MAX_HANDLERS 2
static struct sigaction previous_actions[MAX_HANDLERS];
static int num_handlers;

/* Replace the map of a truncated file by memory, in which the thread continues. The recording is
 * then incomplete, but its program survives. Other faults go to the previous handler. */
static void handle_bus_error(const struct sigaction *previous, int number, siginfo_t *info,
                             void *context) {
    uintptr_t address = (uintptr_t)info->si_addr;
    for (int i = 0; i < MAX_GUARDS; i++) {
        uintptr_t start = __atomic_load_n(&guards[i].start, __ATOMIC_ACQUIRE);
        if (start == 0 || address < start || address - start >= guards[i].size) continue;
        int saved_errno = errno;
        void *memory = mmap((void *)start, guards[i].size, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
        errno = saved_errno;
        if (memory != MAP_FAILED) return;
    }
    if (previous->sa_flags & SA_SIGINFO) {
        previous->sa_sigaction(number, info, context);
    } else if (previous->sa_handler == SIG_DFL || previous->sa_handler == SIG_IGN) {
        sigaction(number, previous, NULL);
        raise(number); /* is delivered when this handler returns */
    } else {
        previous->sa_handler(number);
    }
}

static void first_handler(int number, siginfo_t *info, void *context) {
    handle_bus_error(&previous_actions[0], number, info, context);
}

static void second_handler(int number, siginfo_t *info, void *context) {
    handle_bus_error(&previous_actions[1], number, info, context);
}

/* Install a handler, unless the current one is ours or all of ours are in use. */
static int install_handler(void) {
    static void (*const handlers[MAX_HANDLERS])(int, siginfo_t *, void *) = {first_handler,
                                                                            second_handler};
    struct sigaction action = {0}, current;
    if (sigaction(SIGBUS, NULL, &current) < 0) return -1;
    for (int i = 0; i < num_handlers; i++)
        if (current.sa_flags & SA_SIGINFO && current.sa_sigaction == handlers[i]) return 0;
    if (num_handlers == MAX_HANDLERS) return 0;
    action.sa_sigaction = handlers[num_handlers];
    action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESTART;
    sigemptyset(&action.sa_mask);
    previous_actions[num_handlers++] = current;
    return sigaction(SIGBUS, &action, NULL);
}

static PyObject *guard(PyObject *Py_UNUSED(module), PyObject *buffer) {
    Py_buffer view;
    if (PyObject_GetBuffer(buffer, &view, PyBUF_WRITABLE) < 0) return NULL;
    uintptr_t start = (uintptr_t)view.buf;
    size_t size = (size_t)view.len;
    PyBuffer_Release(&view);
    if (install_handler() < 0) return PyErr_SetFromErrno(PyExc_OSError);
    for (int i = 0; i < MAX_GUARDS; i++) {
        if (guards[i].start != 0) continue;
        guards[i].size = size;
        __atomic_store_n(&guards[i].start, start, __ATOMIC_RELEASE);
        return PyLong_FromLong(i);
    }
    return PyLong_FromLong(-1);
}

static PyObject *unguard(PyObject *Py_UNUSED(module), PyObject *number) {
    long i = PyLong_AsLong(number);
    if (i == -1 && PyErr_Occurred()) return NULL;
    if (i >= 0 && i < MAX_GUARDS) __atomic_store_n(&guards[i].start, 0, __ATOMIC_RELEASE);
    Py_RETURN_NONE;
}

/* ---- the module ---- */

static PyObject *install(PyObject *Py_UNUSED(module), PyObject *args) {
    PyObject *hooks[3], **targets[3] = {&attach_hook, &decorate_hook, &check_hook};
    if (!PyArg_ParseTuple(args, "OOO", &hooks[0], &hooks[1], &hooks[2])) return NULL;
    for (int i = 0; i < 3; i++) {
        PyObject *old = *targets[i];
        Py_INCREF(hooks[i]);
        *targets[i] = hooks[i];
        Py_XDECREF(old);
    }
    Py_RETURN_NONE;
}

static PyObject *reset(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(ignored)) {
    generation++;
    Py_RETURN_NONE;
}

static PyObject *exchange(PyObject *Py_UNUSED(module), PyObject *state) {
    PyObject *previous = Py_None;
    if (thread_generation == generation) previous = (PyObject *)thread_state;
    Py_INCREF(previous);
    State *new_state = Py_TYPE(state) == &StateType ? (State *)state : NULL;
    /* The owner of a state from before a reset may be gone. */
    if (new_state != NULL &&
        (new_state->generation == 0 || new_state->generation == generation)) {
        thread_state = new_state;
        thread_generation = generation;
    } else {
        thread_state = NULL;
        thread_generation = 0;
    }
    return previous;
}

static PyMethodDef methods[] = {
    {"span", (PyCFunction)(void (*)(void))open_span, METH_FASTCALL | METH_KEYWORDS,
     "span(name, kind='work')\n--\n\nSee hotloop.timing.span."},
    {"install", install, METH_VARARGS,
     "install(attach, decorate, check): set the hooks into Python."},
    {"reset", reset, METH_NOARGS, "Discard the states of all threads."},
    {"guard", guard, METH_O,
     "guard(buffer): let the process survive if the file of this map is truncated. Return the\n"
     "number of the guard, for `unguard`, which must be called before the map is closed."},
    {"unguard", unguard, METH_O, "unguard(number): end a guard."},
    {"exchange", exchange, METH_O,
     "Switch the calling thread to another state, to which the caller holds a reference, and\n"
     "return its previous state, or None."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "hotloop.timing._recorder",
    .m_doc = "The recorder in C.",
    .m_size = -1,
    .m_methods = methods,
};

static int add_span_method(const char *name, int is_exit) {
    SpanMethod *method = PyObject_New(SpanMethod, &SpanMethodType);
    if (method == NULL) return -1;
    method->is_exit = is_exit;
    int failed = PyDict_SetItemString(SpanType.tp_dict, name, (PyObject *)method);
    Py_DECREF(method);
    return failed;
}

PyMODINIT_FUNC PyInit__recorder(void) {
    static const char *kinds[3] = {"work", "wait", "transfer"};
    if (PyType_Ready(&SpanMethodType) < 0 || PyType_Ready(&SpanType) < 0 ||
        PyType_Ready(&StateType) < 0)
        return NULL;
    if (add_span_method("__enter__", 0) < 0 || add_span_method("__exit__", 1) < 0) return NULL;
    PyType_Modified(&SpanType);
    for (int k = 0; k < 3; k++) {
        kind_names[k] = PyUnicode_InternFromString(kinds[k]);
        spans[k] = PyDict_New();
        if (kind_names[k] == NULL || spans[k] == NULL) return NULL;
    }
    PyObject *name = PyUnicode_InternFromString(OVERFLOW_NAME);
    if (name == NULL || (overflow_span = make_span(name, kind_names[0])) == NULL) return NULL;
    if (PyDict_SetItem(spans[0], name, (PyObject *)overflow_span) < 0) return NULL;
    Py_DECREF(name);
    PyObject *module = PyModule_Create(&definition);
    if (module == NULL) return NULL;
    Py_INCREF(&StateType);
    Py_INCREF(&SpanType);
    if (PyModule_AddObject(module, "RecorderState", (PyObject *)&StateType) < 0 ||
        PyModule_AddObject(module, "Span", (PyObject *)&SpanType) < 0 ||
        PyModule_AddIntConstant(module, "FLAGS", 0) < 0 ||
        PyModule_AddObject(module, "CURRENT",
                           PyCapsule_New(&current_function, "hotloop.timing._recorder.CURRENT",
                                         NULL)) < 0 ||
        (span_function = PyObject_GetAttrString(module, "span")) == NULL) {
        Py_DECREF(module);
        return NULL;
    }
    PyObject *constants = Py_BuildValue("(iiiiiiiis)", PERIOD, MAX_DEPTH, T_HIST, NUM_BUCKETS,
                                        BUCKET_SHIFT, S_FOLDED, S_UNNAMED, (int)sizeof(Event),
                                        OVERFLOW_NAME);
    if (constants == NULL || PyModule_AddObject(module, "CONSTANTS", constants) < 0) {
        Py_DECREF(module);
        return NULL;
    }
    return module;
}
