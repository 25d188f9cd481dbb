# cython: language_level=3, boundscheck=False, wraparound=False
"""Face of int8_impl.c: check the buffers, release the GIL, one C call.

It does not know what a fault means to the caller: it returns (fault, block) or None.
"""

from cpython.buffer cimport (
    PyBUF_C_CONTIGUOUS, PyBUF_FORMAT, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer,
)
from libc.stdint cimport int64_t, uint8_t

cdef extern from "int8_impl.h":
    ctypedef float p2p_f32
    ctypedef struct p2p_outcome:
        int fault
        int64_t block
    ctypedef struct p2p_int8_kernels:
        const char *name
        p2p_outcome quantise(const p2p_f32 *, uint8_t *, int64_t, int64_t) nogil
        p2p_outcome dequantise(const uint8_t *, p2p_f32 *, int64_t, int64_t) nogil
        p2p_outcome quantise_difference(
            const p2p_f32 *, const p2p_f32 *, float, uint8_t *, int64_t, int64_t) nogil
        p2p_outcome add_difference_requantise(
            const uint8_t *, const p2p_f32 *, const p2p_f32 *, float, float, uint8_t *, int64_t,
            int64_t) nogil
        p2p_outcome outer_step(
            p2p_f32 *, p2p_f32 *, const uint8_t *, float, float, int64_t, int64_t) nogil
        p2p_outcome check(const uint8_t *, int64_t, int64_t) nogil
    const p2p_int8_kernels *p2p_int8_variant(int index) nogil
    int64_t P2P_BLOCK_MAX

BLOCK_MAX = P2P_BLOCK_MAX


cdef class Buffer:
    """A C-contiguous buffer of floats or of bytes, held for the length of one call."""

    cdef Py_buffer view
    cdef int64_t count

    def __cinit__(self, obj, int itemsize, bint writable):
        PyObject_GetBuffer(
            obj, &self.view, PyBUF_C_CONTIGUOUS | PyBUF_FORMAT | (PyBUF_WRITABLE if writable else 0))
        kind = self.view.format.decode().lstrip("<=@^") if self.view.format != NULL else "B"
        if self.view.itemsize != itemsize or kind not in ("f" if itemsize == 4 else "Bbc"):
            raise TypeError(f"a buffer of {'fp32' if itemsize == 4 else 'bytes'}, not of {kind!r}")
        self.count = self.view.len // itemsize

    def __dealloc__(self):
        PyBuffer_Release(&self.view)


cdef inline Buffer floats(obj, bint writable=False):
    return Buffer(obj, 4, writable)


cdef inline Buffer payload_of(obj, int64_t numel, int64_t block, bint writable=False):
    if not 1 <= block <= P2P_BLOCK_MAX:
        raise ValueError(f"block is {block}; it must be 1 to {P2P_BLOCK_MAX}")
    cdef Buffer payload = Buffer(obj, 1, writable)
    cdef int64_t expected = numel + 4 * ((numel + block - 1) // block)
    if payload.count != expected:
        raise ValueError(f"a payload of {payload.count} bytes; {numel} elements make {expected}")
    return payload


cdef inline int same(Buffer a, Buffer b) except -1:
    if a.count != b.count:
        raise ValueError(f"vectors of {a.count} and {b.count} elements")
    return 0


cdef inline const p2p_int8_kernels *variant_at(int index) except NULL:
    cdef const p2p_int8_kernels *kernels = p2p_int8_variant(index)
    if kernels == NULL:
        raise ValueError(f"no variant {index} on this machine")
    return kernels


cdef inline told(p2p_outcome outcome):
    return None if outcome.fault == 0 else (outcome.fault, outcome.block)


def variants():
    """Names of the variants that this machine runs, best first."""
    names, index = [], 0
    while p2p_int8_variant(index) != NULL:
        names.append(p2p_int8_variant(index).name.decode())
        index += 1
    return tuple(names)


def quantise(src, out, int64_t block, int variant):
    cdef const p2p_int8_kernels *kernels = variant_at(variant)
    cdef Buffer x = floats(src)
    cdef Buffer o = payload_of(out, x.count, block, True)
    cdef p2p_outcome outcome
    with nogil:
        outcome = kernels.quantise(<const p2p_f32 *>x.view.buf, <uint8_t *>o.view.buf, x.count, block)
    return told(outcome)


def dequantise(payload, out, int64_t block, int variant):
    cdef const p2p_int8_kernels *kernels = variant_at(variant)
    cdef Buffer o = floats(out, True)
    cdef Buffer p = payload_of(payload, o.count, block)
    cdef p2p_outcome outcome
    with nogil:
        outcome = kernels.dequantise(
            <const uint8_t *>p.view.buf, <p2p_f32 *>o.view.buf, o.count, block)
    return told(outcome)


def quantise_difference(theta, local, float weight, out, int64_t block, int variant):
    cdef const p2p_int8_kernels *kernels = variant_at(variant)
    cdef Buffer t = floats(theta)
    cdef Buffer l = floats(local)
    same(t, l)
    cdef Buffer o = payload_of(out, t.count, block, True)
    cdef p2p_outcome outcome
    with nogil:
        outcome = kernels.quantise_difference(
            <const p2p_f32 *>t.view.buf, <const p2p_f32 *>l.view.buf, weight,
            <uint8_t *>o.view.buf, t.count, block)
    return told(outcome)


def add_difference_requantise(
    payload, theta, local, float weight, float divisor, out, int64_t block, int variant
):
    cdef const p2p_int8_kernels *kernels = variant_at(variant)
    cdef Buffer t = floats(theta)
    cdef Buffer l = floats(local)
    same(t, l)
    cdef Buffer p = payload_of(payload, t.count, block)
    cdef Buffer o = payload_of(out, t.count, block, True)
    cdef p2p_outcome outcome
    with nogil:
        outcome = kernels.add_difference_requantise(
            <const uint8_t *>p.view.buf, <const p2p_f32 *>t.view.buf, <const p2p_f32 *>l.view.buf,
            weight, divisor, <uint8_t *>o.view.buf, t.count, block)
    return told(outcome)


def outer_step(theta, momentum, payload, float lr, float mu, int64_t block, int variant):
    cdef const p2p_int8_kernels *kernels = variant_at(variant)
    cdef Buffer t = floats(theta, True)
    cdef Buffer m = floats(momentum, True)
    same(t, m)
    cdef Buffer p = payload_of(payload, t.count, block)
    cdef p2p_outcome outcome
    with nogil:
        outcome = kernels.outer_step(
            <p2p_f32 *>t.view.buf, <p2p_f32 *>m.view.buf, <const uint8_t *>p.view.buf, lr, mu,
            t.count, block)
    return told(outcome)


def check(payload, int64_t numel, int64_t block):
    if numel < 0:
        raise ValueError(f"{numel} elements")
    cdef Buffer p = payload_of(payload, numel, block)
    cdef p2p_outcome outcome
    with nogil:
        outcome = p2p_int8_variant(0).check(<const uint8_t *>p.view.buf, numel, block)
    return told(outcome)
