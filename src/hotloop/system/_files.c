/* Many small files of the kernel's at one go, without the GIL.
 *
 * A thread that reads them one by one gives the GIL away at each, and has to ask for it again: the
 * program would be interrupted some hundred times a second.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MAX_SIZE 65536

typedef struct Found {
    struct Found *next;
    char *path;
    ssize_t size;
    char text[];
} Found;

/* Adds to the end of the list; returns the new end. What can't be read is left out. */
static Found **read_all(const char *pattern, Found **end) {
    glob_t matches;
    if (glob(pattern, GLOB_NOSORT, NULL, &matches) != 0) return end;
    static _Thread_local char text[MAX_SIZE];
    for (size_t i = 0; i < matches.gl_pathc; i++) {
        int file = open(matches.gl_pathv[i], O_RDONLY | O_CLOEXEC);
        if (file < 0) continue;
        ssize_t size = 0, more = 0;
        while (size < MAX_SIZE) {
            more = read(file, text + size, MAX_SIZE - (size_t)size);
            if (more < 0 && errno == EINTR) continue;
            if (more <= 0) break;
            size += more;
        }
        close(file);
        if (more < 0) continue; /* its thread or process has ended */
        if (size == MAX_SIZE) /* there is more: not half a number of many */
            while (size > 0 && text[size - 1] > ' ') size--;
        Found *found = malloc(sizeof(Found) + (size_t)size);
        if (found == NULL) break;
        *found = (Found){.path = strdup(matches.gl_pathv[i]), .size = size};
        memcpy(found->text, text, (size_t)size);
        *end = found;
        end = &found->next;
    }
    globfree(&matches);
    return end;
}

static PyObject *read_files(PyObject *Py_UNUSED(module), PyObject *patterns) {
    PyObject *given = PySequence_Tuple(patterns);
    if (given == NULL) return NULL;
    Py_ssize_t count = PyTuple_GET_SIZE(given);
    for (Py_ssize_t i = 0; i < count; i++)
        if (PyUnicode_AsUTF8(PyTuple_GET_ITEM(given, i)) == NULL) { /* it keeps the bytes */
            Py_DECREF(given);
            return NULL;
        }
    Found *first = NULL, **end = &first;
    const char **texts = PyMem_Malloc((size_t)(count + 1) * sizeof(char *));
    if (texts == NULL) {
        Py_DECREF(given);
        return PyErr_NoMemory();
    }
    for (Py_ssize_t i = 0; i < count; i++) texts[i] = PyUnicode_AsUTF8(PyTuple_GET_ITEM(given, i));
    Py_BEGIN_ALLOW_THREADS;
    for (Py_ssize_t i = 0; i < count; i++) end = read_all(texts[i], end);
    Py_END_ALLOW_THREADS;
    PyMem_Free(texts);
    Py_DECREF(given);
    PyObject *files = PyList_New(0);
    while (first != NULL) {
        Found *found = first;
        first = found->next;
        if (files != NULL && found->path != NULL) {
            PyObject *pair = Py_BuildValue("(sy#)", found->path, found->text,
                                           (Py_ssize_t)found->size);
            if (pair == NULL || PyList_Append(files, pair) < 0) Py_CLEAR(files);
            Py_XDECREF(pair);
        }
        free(found->path);
        free(found);
    }
    return files;
}

static PyMethodDef methods[] = {
    {"read_files", read_files, METH_O,
     "read_files(patterns): path and contents of all files that match, as (str, bytes)."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "hotloop.system._files",
    .m_doc = "Many small files at one go.",
    .m_size = 0,
    .m_methods = methods,
};

PyMODINIT_FUNC PyInit__files(void) { return PyModuleDef_Init(&definition); }
