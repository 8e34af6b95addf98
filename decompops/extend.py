"""The names that other packages build on: operators, bases, stages, backends, tuners and equations.

All these names are defined elsewhere in the package. Other packages import from this module, because its names do not
change. docs/extending.md lists the pages with a complete example of each kind; `examples/extending` is an installable
package with one of each.

- Operators made of stages: implement `AbstractPlanned.plan`, which returns a `Plan` over `Blocks`.
- Other operators: implement `AbstractDerivable.apply` for each `Form`, or all of `AbstractOperator`. Layers and other
  functions of fields that are not operators: `AbstractTyped`. A `Structure` is the type of their input or result.
- Transforms: `AbstractTransform`; `transform_plan` returns the `Plan` of a transform.
- Bases: `AbstractBasis` and its `AbstractLineTransform`. A `Run` is a range of coefficients that are kept or mapped; a
  `DerivativeRule` says how a derivative is computed. This package defines `Fourier` with its `DFT`; `Cosine`, `Sine`
  and `Chebyshev` with their `RealToReal`; `Points` and `Cells`.
- Stages: `AbstractStage`. This package defines `Move`, `LocalTransform`, `Extend`, `Crop`, `Clear`, `Scale` and
  `Resize`.
- Backends: `AbstractBackend`, whose `run` gets a `Plan`, a block and the `Call`. `run_stage` and `move` compute stages
  with XLA. `register_backend` gives the backend a name. A backend may report `Caller` and `Counters`.
- Tuners for `dops.autotune`: `AbstractTuner`, whose `candidates` gets a `Task`.
- Operators that multiply modes: `AbstractSpectralOperator`. Equations: `AbstractEquation`. Terms of an equation that
  multiply fields: `AbstractProducts`. All three derive from `AbstractSpectral`. `vector` is vector calculus on
  spectra.
- Methods that solve linear systems: `AbstractSolver`, `System` and `State` in `decompops.solve`.
- Checks of arguments: the functions `check_...` raise an error that names the argument, the rule and the value.
"""

from ._autotune.trial import Task as Task
from ._autotune.tuner import AbstractTuner as AbstractTuner
from ._backend.base import AbstractBackend as AbstractBackend, Call as Call, Caller as Caller, Counters as Counters
from ._backend.xla.backend import move as move, run_stage as run_stage
from ._basis.base import (
    AbstractBasis as AbstractBasis,
    AbstractLineTransform as AbstractLineTransform,
    DerivativeRule as DerivativeRule,
    Kind as Kind,
    Run as Run,
)
from ._basis.cells import Cells as Cells
from ._basis.chebyshev import Chebyshev as Chebyshev
from ._basis.cosine import Cosine as Cosine, RealToReal as RealToReal, Sine as Sine
from ._basis.fourier import DFT as DFT, Fourier as Fourier
from ._basis.points import Points as Points
from ._common.blocks import Blocks as Blocks, Pencil as Pencil, axis_names as axis_names
from ._common.box import Box as Box, Number as Number
from ._common.check import (
    check_axes as check_axes,
    check_axis as check_axis,
    check_count as check_count,
    check_flag as check_flag,
    check_number as check_number,
    check_one_or_each as check_one_or_each,
    check_shape as check_shape,
    check_up_to as check_up_to,
)
from ._core.decomposition import Decomposition as Decomposition
from ._core.layout import Layout as Layout
from ._core.registry import register_backend as register_backend
from ._core.structure import Structure as Structure
from ._operator.base import AbstractOperator as AbstractOperator, AbstractTyped as AbstractTyped
from ._operator.derived import UNCHANGED as UNCHANGED, AbstractDerivable as AbstractDerivable, Form as Form
from ._operator.planned import AbstractPlanned as AbstractPlanned, plan_in_form as plan_in_form
from ._operator.transform import (
    AbstractTransform as AbstractTransform,
    Wavenumbers as Wavenumbers,
    check_bases as check_bases,
    check_modes as check_modes,
    check_norm as check_norm,
)
from ._plan.plan import Plan as Plan
from ._plan.stage import (
    AbstractStage as AbstractStage,
    Clear as Clear,
    Crop as Crop,
    Extend as Extend,
    LocalTransform as LocalTransform,
    Move as Move,
    Resize as Resize,
    Scale as Scale,
)
from ._plan.transform import Norm as Norm, transform_plan as transform_plan
from .pde._equation import AbstractEquation as AbstractEquation, Time as Time
from .pde._products import AbstractProducts as AbstractProducts
from .spectral import _vector
from .spectral._check import check_fft as check_fft
from .spectral._dealiasing import AbstractDealiasing as AbstractDealiasing
from .spectral._modes import (
    AbstractSpectral as AbstractSpectral,
    Components as Components,
    check_components as check_components,
)
from .spectral._operator import AbstractSpectralOperator as AbstractSpectralOperator


vector = _vector
