# cython: language_level=3, boundscheck=False, wraparound=False
"""The Python interface of codec_impl.c: check the buffers, release the GIL, make one C call.

The kernels return (fault, block, read, made); this module does not interpret faults.
"""

from cpython.buffer cimport (
    PyBUF_C_CONTIGUOUS, PyBUF_FORMAT, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer,
)
from libc.stdint cimport int64_t, uint8_t

cdef extern from "codec_impl.h":
    ctypedef float p2p_f32
    ctypedef struct p2p_outcome:
        int fault
        int64_t block
        float read
        float made
    ctypedef struct p2p_share:
        const uint8_t *payload
        const p2p_f32 *theta
        const p2p_f32 *local
        const p2p_f32 *residual
        float weight
        float divisor
        uint8_t *out
        p2p_f32 *residual_out
        p2p_f32 *sum
    ctypedef struct p2p_kernels:
        p2p_outcome quantise(const p2p_f32 *, uint8_t *, int64_t, int64_t) nogil
        p2p_outcome dequantise(const uint8_t *, p2p_f32 *, int64_t, int64_t) nogil
        p2p_outcome quantise_difference(p2p_share, int64_t, int64_t) nogil
        p2p_outcome add_difference(p2p_share, int64_t, int64_t) nogil
        p2p_outcome add_difference_requantise(p2p_share, int64_t, int64_t) nogil
        p2p_outcome outer_step(
            p2p_f32 *, p2p_f32 *, const uint8_t *, float, float, int64_t, int64_t) nogil
        p2p_outcome check(const uint8_t *, int64_t, int64_t) nogil
    const p2p_kernels *p2p_kernels_of(int codec, int variant) nogil
    const char *p2p_variant_name(int variant) nogil
    int64_t p2p_encoded_bytes(int codec, int64_t numel, int64_t block) nogil
    int64_t P2P_BLOCK_MAX
    int P2P_CODECS

BLOCK_MAX = P2P_BLOCK_MAX


cdef class Buffer:
    """A C-contiguous buffer of floats or of bytes, held during one call."""

    cdef Py_buffer view
    cdef int64_t count

    def __cinit__(self, obj, int itemsize, bint writable):
        PyObject_GetBuffer(
            obj, &self.view, PyBUF_C_CONTIGUOUS | PyBUF_FORMAT | (PyBUF_WRITABLE if writable else 0))
        kind = self.view.format.decode().lstrip("<=@^") if self.view.format != NULL else "B"
        if self.view.itemsize != itemsize or kind not in ("f" if itemsize == 4 else "Bbc"):
            raise TypeError(f"expected {'fp32' if itemsize == 4 else 'bytes'}, not {kind!r}")
        self.count = self.view.len // itemsize

    def __dealloc__(self):
        PyBuffer_Release(&self.view)

    cdef p2p_f32 *floats(self):
        return <p2p_f32 *>self.view.buf

    cdef uint8_t *bytes(self):
        return <uint8_t *>self.view.buf


cdef inline Buffer vector(obj, int64_t numel=-1, bint writable=False):
    cdef Buffer found = Buffer(obj, 4, writable)
    if numel >= 0 and found.count != numel:
        raise ValueError(f"vectors have different lengths: {found.count} and {numel}")
    return found


cdef inline Buffer vector_if_any(obj, int64_t numel, bint writable=False):
    return None if obj is None else vector(obj, numel, writable)


cdef inline Buffer payload_of(obj, int codec, int64_t numel, int64_t block, bint writable=False):
    cdef int64_t expected = encoded_bytes(codec, numel, block)
    cdef Buffer payload = Buffer(obj, 1, writable)
    if payload.count != expected:
        raise ValueError(f"the payload has {payload.count} bytes; {numel} elements need {expected}")
    return payload


cdef inline const p2p_kernels *kernels_of(int codec, int variant) except NULL:
    if not 0 <= codec < P2P_CODECS:
        raise ValueError(f"there is no codec {codec}")
    cdef const p2p_kernels *kernels = p2p_kernels_of(codec, variant)
    if kernels == NULL:
        raise ValueError(f"there is no variant {variant} on this machine")
    return kernels


cdef inline told(p2p_outcome outcome):
    return outcome.fault, outcome.block, outcome.read, outcome.made


def variants():
    """Return the names of the variants that this machine can run, fastest first."""
    names, index = [], 0
    while p2p_variant_name(index) != NULL:
        names.append(p2p_variant_name(index).decode())
        index += 1
    return tuple(names)


cpdef int64_t encoded_bytes(int codec, int64_t numel, int64_t block) except -1:
    if not 0 <= codec < P2P_CODECS or numel < 0 or not 1 <= block <= P2P_BLOCK_MAX:
        raise ValueError(f"invalid payload: codec {codec}, {numel} elements, blocks of {block}")
    return p2p_encoded_bytes(codec, numel, block)


def quantise(int codec, int64_t block, int variant, src, out):
    cdef const p2p_kernels *kernels = kernels_of(codec, variant)
    cdef Buffer x = vector(src)
    cdef Buffer o = payload_of(out, codec, x.count, block, True)
    cdef p2p_outcome outcome
    with nogil:
        outcome = kernels.quantise(<const p2p_f32 *>x.view.buf, <uint8_t *>o.view.buf, x.count, block)
    return told(outcome)


def dequantise(int codec, int64_t block, int variant, payload, out):
    cdef const p2p_kernels *kernels = kernels_of(codec, variant)
    cdef Buffer o = vector(out, -1, True)
    cdef Buffer p = payload_of(payload, codec, o.count, block)
    cdef p2p_outcome outcome
    with nogil:
        outcome = kernels.dequantise(
            <const uint8_t *>p.view.buf, <p2p_f32 *>o.view.buf, o.count, block)
    return told(outcome)


def quantise_difference(
    int codec, int64_t block, int variant, theta, local, float weight, out, residual, residual_out
):
    cdef const p2p_kernels *kernels = kernels_of(codec, variant)
    cdef Buffer t = vector(theta)
    cdef Buffer l = vector(local, t.count)
    cdef Buffer o = payload_of(out, codec, t.count, block, True)
    cdef Buffer r = vector_if_any(residual, t.count)
    cdef Buffer kept = vector_if_any(residual_out, t.count, True)
    cdef p2p_share share
    cdef p2p_outcome outcome
    share.payload, share.theta, share.local = NULL, t.floats(), l.floats()
    share.residual = NULL if r is None else r.floats()
    share.weight, share.divisor, share.out = weight, 1, o.bytes()
    share.residual_out, share.sum = (NULL if kept is None else kept.floats()), NULL
    with nogil:
        outcome = kernels.quantise_difference(share, t.count, block)
    return told(outcome)


def add_difference(
    int codec, int64_t block, int variant, payload, theta, local, float weight, total, residual
):
    cdef const p2p_kernels *kernels = kernels_of(codec, variant)
    cdef Buffer t = vector(theta)
    cdef Buffer l = vector_if_any(local, t.count)
    cdef Buffer p = payload_of(payload, codec, t.count, block)
    cdef Buffer s = vector(total, t.count, True)
    cdef Buffer r = vector_if_any(residual, t.count)
    cdef p2p_share share
    cdef p2p_outcome outcome
    share.payload, share.theta, share.sum = p.bytes(), t.floats(), s.floats()
    share.local = NULL if l is None else l.floats()
    share.residual = NULL if r is None else r.floats()
    share.weight, share.divisor = weight, 1
    share.out, share.residual_out = NULL, NULL
    with nogil:
        outcome = kernels.add_difference(share, t.count, block)
    return told(outcome)


def add_difference_requantise(
    int codec, int64_t block, int variant, payload, theta, local, float weight, float divisor, out,
    residual, residual_out
):
    cdef const p2p_kernels *kernels = kernels_of(codec, variant)
    cdef Buffer t = vector(theta)
    cdef Buffer l = vector_if_any(local, t.count)
    cdef Buffer p = payload_of(payload, codec, t.count, block)
    cdef Buffer o = payload_of(out, codec, t.count, block, True)
    cdef Buffer r = vector_if_any(residual, t.count)
    cdef Buffer kept = vector_if_any(residual_out, t.count, True)
    cdef p2p_share share
    cdef p2p_outcome outcome
    share.payload, share.theta, share.sum = p.bytes(), t.floats(), NULL
    share.local = NULL if l is None else l.floats()
    share.residual = NULL if r is None else r.floats()
    share.weight, share.divisor, share.out = weight, divisor, o.bytes()
    share.residual_out = NULL if kept is None else kept.floats()
    with nogil:
        outcome = kernels.add_difference_requantise(share, t.count, block)
    return told(outcome)


def outer_step(
    int codec, int64_t block, int variant, theta, momentum, payload, float lr, float mu
):
    cdef const p2p_kernels *kernels = kernels_of(codec, variant)
    cdef Buffer t = vector(theta, -1, True)
    cdef Buffer m = vector(momentum, t.count, True)
    cdef Buffer p = payload_of(payload, codec, t.count, block)
    cdef p2p_outcome outcome
    with nogil:
        outcome = kernels.outer_step(
            <p2p_f32 *>t.view.buf, <p2p_f32 *>m.view.buf, <const uint8_t *>p.view.buf, lr, mu,
            t.count, block)
    return told(outcome)


def check(int codec, int64_t block, int variant, payload, int64_t numel):
    cdef const p2p_kernels *kernels = kernels_of(codec, variant)
    cdef Buffer p = payload_of(payload, codec, numel, block)
    cdef p2p_outcome outcome
    with nogil:
        outcome = kernels.check(<const uint8_t *>p.view.buf, numel, block)
    return told(outcome)
