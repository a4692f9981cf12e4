/* Reading of many small files in /proc without the GIL.
 *
 * A thread that reads files one by one releases and takes the GIL for each of them, which would
 * interrupt the program some hundred times a second.
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

typedef struct File {
    struct File *next;
    char *path;
    ssize_t size;
    char text[];
} File;

/* Append all matching files to the list, return its new end, and omit unreadable files. */
static File **read_all(const char *pattern, File **end) {
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
        if (more < 0) continue; /* the file's thread or process has ended */
        if (size == MAX_SIZE) /* truncated: drop the last, incomplete number */
            while (size > 0 && text[size - 1] > ' ') size--;
        File *item = malloc(sizeof(File) + (size_t)size);
        if (item == NULL) break;
        *item = (File){.path = strdup(matches.gl_pathv[i]), .size = size};
        memcpy(item->text, text, (size_t)size);
        *end = item;
        end = &item->next;
    }
    globfree(&matches);
    return end;
}

static PyObject *read_files(PyObject *Py_UNUSED(module), PyObject *patterns) {
    PyObject *tuple = PySequence_Tuple(patterns);
    if (tuple == NULL) return NULL;
    Py_ssize_t count = PyTuple_GET_SIZE(tuple);
    for (Py_ssize_t i = 0; i < count; i++)
        if (PyUnicode_AsUTF8(PyTuple_GET_ITEM(tuple, i)) == NULL) { /* the object caches the bytes */
            Py_DECREF(tuple);
            return NULL;
        }
    File *first = NULL, **end = &first;
    const char **texts = PyMem_Malloc((size_t)(count + 1) * sizeof(char *));
    if (texts == NULL) {
        Py_DECREF(tuple);
        return PyErr_NoMemory();
    }
    for (Py_ssize_t i = 0; i < count; i++) texts[i] = PyUnicode_AsUTF8(PyTuple_GET_ITEM(tuple, i));
    Py_BEGIN_ALLOW_THREADS;
    for (Py_ssize_t i = 0; i < count; i++) end = read_all(texts[i], end);
    Py_END_ALLOW_THREADS;
    PyMem_Free(texts);
    Py_DECREF(tuple);
    PyObject *files = PyList_New(0);
    while (first != NULL) {
        File *item = first;
        first = item->next;
        if (files != NULL && item->path != NULL) {
            PyObject *pair = Py_BuildValue("(sy#)", item->path, item->text,
                                           (Py_ssize_t)item->size);
            if (pair == NULL || PyList_Append(files, pair) < 0) Py_CLEAR(files);
            Py_XDECREF(pair);
        }
        free(item->path);
        free(item);
    }
    return files;
}

static PyMethodDef methods[] = {
    {"read_files", read_files, METH_O,
     "read_files(patterns): return path and content of all matching files, as (str, bytes)."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "hotloop.base._files",
    .m_doc = "Reading of many small files without the GIL.",
    .m_size = 0,
    .m_methods = methods,
};

PyMODINIT_FUNC PyInit__files(void) { return PyModuleDef_Init(&definition); }
