"""What others build on: operators, bases, stages, backends, tuners and equations that live outside this repository.

Everything here is defined elsewhere in the package, and stays importable from here. docs/extending.md has a complete
example of each; `examples/extending` is an installable package that adds one of each.

- An operator made of stages: `AbstractPlanned` with a `plan`, which returns a `Plan` over `Blocks`.
- Any other operator: `AbstractDerivable` with an `apply` for each `Form`, or `AbstractOperator`. `AbstractTyped` is a
  function of fields that is no operator, such as a layer. A `Structure` says what each of them takes and returns.
- A transform: `AbstractTransform`, and `transform_plan` for its stages.
- A basis: `AbstractBasis` and its `AbstractLineTransform`; a `Run` is a range of coefficients that are kept or
  mapped, a `DerivativeRule` says what a derivative is. `Fourier` with its `DFT`, `Cosine`, `Sine` and
  `Chebyshev` with their `RealToReal`, `Points` and `Cells` are those of this package.
- A stage: `AbstractStage`. `Move`, `LocalTransform`, `Extend`, `Crop`, `Clear`, `Scale` and `Resize` are those of this
  package.
- A backend: `AbstractBackend`, whose `run` gets a `Plan`, a block and the `Call`; `run_stage` and `move` compute stages
  with XLA; `register_backend` gives the backend a name. `Caller` and `Counters` are what it may report.
- A tuner for `dops.autotune`: `AbstractTuner`, whose `candidates` gets a `Task`.
- An operator that multiplies modes: `AbstractSpectralOperator`; an equation: `AbstractEquation`. Both are
  `AbstractSpectral`. `vector` is the vector calculus on spectra.
- Checks of arguments, each of which raises an error that names the argument, the rule and the value.
"""

from ._autotune.trial import Task as Task
from ._autotune.tuner import AbstractTuner as AbstractTuner
from ._backend.base import (
    AbstractBackend as AbstractBackend,
    Call as Call,
    Caller as Caller,
    Counters as Counters,
)
from ._backend.xla import move as move, run_stage as run_stage
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
from ._blocks import Blocks as Blocks, Pencil as Pencil, axis_names as axis_names
from ._box import Box as Box, Number as Number, check_box as check_box
from ._check import (
    check_axes as check_axes,
    check_axis as check_axis,
    check_count as check_count,
    check_flag as check_flag,
    check_number as check_number,
    check_one_or_each as check_one_or_each,
    check_shape as check_shape,
    check_up_to as check_up_to,
)
from ._decomposition import Decomposition as Decomposition
from ._layout import Layout as Layout
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
from ._registry import register_backend as register_backend
from ._structure import Structure as Structure
from .pde._equation import AbstractEquation as AbstractEquation, Time as Time
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
