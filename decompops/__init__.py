"""Distributed linear operators on grids for JAX."""

import importlib as _importlib
import typing as _typing

from ._common.typecheck import install as _install


_install()  # The type checker checks only modules that are imported later.

from ._autotune.choose import autotune as autotune
from ._autotune.cudecomp import CuDecompTuner as CuDecompTuner
from ._autotune.trial import Trial as Trial
from ._backend.base import AbstractBackend as AbstractBackend
from ._backend.cudecomp.backend import CuDecomp as CuDecomp
from ._backend.mpi.backend import MPI as MPI
from ._backend.native.backend import Native as Native, register as _register
from ._backend.native.kernel import cores as _cores
from ._backend.xla.backend import XLA as XLA
from ._basis.cells import Cells as Cells
from ._basis.chebyshev import Chebyshev as Chebyshev
from ._basis.cosine import Cosine as Cosine, Sine as Sine
from ._basis.fourier import Fourier as Fourier
from ._basis.points import Points as Points
from ._common import compat as _compat
from ._common.box import Box as Box
from ._core.config import config as config
from ._core.decomposition import Decomposition as Decomposition
from ._core.layout import Layout as Layout
from ._operator.base import AbstractOperator as AbstractOperator, Compose as Compose
from ._operator.fft import FFT as FFT, FFT2D as FFT2D, FFT3D as FFT3D
from ._operator.halo import HaloExchange as HaloExchange
from ._operator.multiply import Multiply as Multiply
from ._operator.roll import Roll as Roll
from ._operator.stencil import Stencil as Stencil
from ._operator.transform import Transform as Transform
from ._operator.transpose import Transpose as Transpose


_compat.avoid_hanging_ffts()
_compat.avoid_deadlocks(_cores())
_register()

__version__ = "0.1.0"

if _typing.TYPE_CHECKING:
    from . import (
        fft as fft,
        finite_volume as finite_volume,
        io as io,
        mpmd as mpmd,
        nn as nn,
        particles as particles,
        pde as pde,
        plot as plot,
        solve as solve,
        spectral as spectral,
    )
else:
    # A subpackage is imported when it is first used. So a program waits only for those that it uses.
    _SUBPACKAGES = ("fft", "finite_volume", "io", "mpmd", "nn", "particles", "pde", "plot", "solve", "spectral")

    def __getattr__(name):
        if name in _SUBPACKAGES:
            return _importlib.import_module(f".{name}", __name__)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def __dir__():
        return sorted({*globals(), *_SUBPACKAGES})

    __all__ = [name for name in __dir__() if not name.startswith("_")]
