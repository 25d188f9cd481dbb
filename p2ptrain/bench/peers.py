"""Other libraries that quantise fp32 to 8 bits. The measured time includes their search for the
range of the values.

These libraries are not dependencies. They are measured if they are installed. Only this module
imports them, with importlib.
"""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable
from types import ModuleType

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Call = Callable[[], object]
Load = Callable[[str], ModuleType]
"""Imports the module of this name. Raises ImportError."""
CODES = 255


def pypiquant(src: Floats, load: Load = importlib.import_module) -> Call | None:
    """Return a function that runs pypiquant's scan and quantise in one thread, into existing
    memory; None if pypiquant is not installed."""
    piquant = _module("piquant", load)
    if piquant is None:
        return None
    context, kind = piquant.Context(1), piquant.DataType
    out = np.zeros(src.size, np.uint8)
    at, to = src.ctypes.data, out.ctypes.data

    def quantise() -> object:
        scale, zero = context.compute_quant_params_ptr_float32(at, kind.UINT8, src.size)
        context.quantize_ptr(
            at, kind.F32, to, kind.UINT8, src.size, scale, zero, piquant.RoundMode.NEAREST
        )
        return out

    return quantise


def torch(src: Floats, load: Load = importlib.import_module) -> Call | None:
    """Return a function that runs torch's aminmax and quantize_per_tensor in one thread, into an
    existing tensor; None if torch is not installed."""
    library = _module("torch", load)
    if library is None:
        return None
    library.set_num_threads(1)
    x = library.from_numpy(src)
    with warnings.catch_warnings():
        # torch warns that this function is deprecated, but it is still the right comparison.
        warnings.simplefilter("ignore", UserWarning)
        out = library.quantize_per_tensor(x, 1.0, 0, library.quint8)

    def quantise() -> object:
        low, high = (float(each) for each in library.aminmax(x))
        scale = (high - low) / CODES or 1.0
        zero = round(-low / scale)
        library.ops.aten.quantize_per_tensor.out(x, scale, zero, library.quint8, out=out)
        return out

    return quantise


PEERS: dict[str, Callable[[Floats, Load], Call | None]] = {"pypiquant": pypiquant, "torch": torch}
"""The functions of this module by the libraries' names on PyPI."""


def _module(name: str, load: Load) -> ModuleType | None:
    try:
        return load(name)
    except ImportError:
        return None
