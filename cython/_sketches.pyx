# cython: language_level=3, boundscheck=False, wraparound=False
"""The Python interface of sketch_impl.c: check the buffers, release the GIL, make one C call."""

from cpython.buffer cimport (
    PyBUF_C_CONTIGUOUS, PyBUF_FORMAT, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer,
)
from libc.stdint cimport int64_t, uint64_t

cdef extern from "sketch_impl.h":
    ctypedef float p2p_f32
    ctypedef int (*p2p_sketch_kernel)(
        const p2p_f32 *, int64_t, int64_t, uint64_t, int, int64_t *) nogil
    p2p_sketch_kernel p2p_sketch_kernel_of(int variant) nogil
    const char *p2p_sketch_variant_name(int variant) nogil
    int P2P_SKETCH_WIDTH
    int P2P_ELEMENT_BITS

WIDTH = P2P_SKETCH_WIDTH
ELEMENT_BITS = P2P_ELEMENT_BITS


cdef class Buffer:
    """A C-contiguous buffer of elements of one kind, held during one call."""

    cdef Py_buffer view
    cdef int64_t count

    def __cinit__(self, obj, int itemsize, str kinds, bint writable):
        PyObject_GetBuffer(
            obj, &self.view, PyBUF_C_CONTIGUOUS | PyBUF_FORMAT | (PyBUF_WRITABLE if writable else 0))
        kind = self.view.format.decode().lstrip("<=@^") if self.view.format != NULL else "B"
        if self.view.itemsize != itemsize or kind not in kinds:
            raise TypeError(f"expected elements of {itemsize} bytes of kind {kinds!r}, not {kind!r}")
        self.count = self.view.len // itemsize

    def __dealloc__(self):
        PyBuffer_Release(&self.view)


def variants():
    """Return the names of the variants that this machine can run, fastest first."""
    names, index = [], 0
    while p2p_sketch_variant_name(index) != NULL:
        names.append(p2p_sketch_variant_name(index).decode())
        index += 1
    return tuple(names)


def add(int variant, values, int64_t first, uint64_t seed, int unit_exponent, sums):
    """Add the elements of a vector to `sums`. Return whether all of them were allowed."""
    cdef p2p_sketch_kernel kernel = p2p_sketch_kernel_of(variant)
    if kernel == NULL:
        raise ValueError(f"there is no variant {variant} on this machine")
    cdef Buffer x = Buffer(values, 4, "f", False)
    cdef Buffer s = Buffer(sums, 8, "lq", True)
    if s.count != P2P_SKETCH_WIDTH or first < 0:
        raise ValueError(f"a sketch has {WIDTH} sums, not {s.count}; and {first} is no element")
    cdef int fault
    with nogil:
        fault = kernel(<const p2p_f32 *>x.view.buf, x.count, first, seed, unit_exponent,
                       <int64_t *>s.view.buf)
    return fault == 0
