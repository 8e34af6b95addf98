"""`Multiply`: the product with a field, as an operator."""

from dataclasses import replace
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Inexact, Shaped

from .._common.broadcast import aligned
from .._common.check import check_inexact
from .._common.host import device_array
from .._common.remember import keep_if_traced
from .._core.decomposition import Decomposition, check_decomposition, check_field
from .._core.structure import Structure
from .base import AbstractOperator
from .placed import Placed


class Multiply(AbstractOperator):
    """Multiply fields by a given field, such as a coefficient that depends on the place.

    `lambda u: a * u` in a pipeline does the same, but has no transpose. The factor is an array of the operator: JAX
    differentiates with respect to it, and a compiled program serves all factors.

    !!! example

        ```python
        flux = dops.Multiply(dec, a) @ spectral.Gradient(fft)     # a ∇u
        flux.T                                                    # its transpose
        ```
    """

    decomposition: Decomposition
    factor: Inexact[Array, "*factor"]

    def __init__(self, decomposition: Decomposition, factor: Inexact[Array | np.ndarray, "*factor"]):
        """**Arguments:**

        - `decomposition`: the grid.
        - `factor`: a real or complex field of shape `(*batch, *shape)` that broadcasts against the fields. For vectors
            of shape `(*batch, 3, *shape)`, a factor with batch axes has the shape `(*batch, 1, *shape)`.

        An instance is called as `multiply(u)`. The product has the precision of u or, if u holds integers or truth
        values, the precision of the factor.

        **Raises:** `TypeError` if `decomposition` is not a `Decomposition`, or if `factor` is neither real nor complex;
        `ValueError` if `factor` does not have the shape of the grid.
        """
        check_decomposition(decomposition)
        factor = check_inexact("factor", device_array(factor, "factor"))
        check_field("factor", factor, decomposition)
        self.decomposition = decomposition
        self.factor = Placed(decomposition)(factor)

    def __call__(self, x: Shaped[Array | np.ndarray, "*field"], *, key: Any = None) -> Shaped[Array, "*result"]:
        keep_if_traced(self, x)
        return self.local(Placed(self.decomposition)(device_array(x)))

    def local(self, block: Shaped[Array, "*field"]) -> Shaped[Array, "*result"]:
        factor = aligned(self.factor, block)
        dtype = block.dtype if jnp.issubdtype(block.dtype, jnp.inexact) else factor.dtype
        if jnp.iscomplexobj(factor):
            dtype = np.result_type(dtype, np.complex64)
        return factor.astype(dtype) * block.astype(dtype)

    @property
    def T(self) -> "Multiply":
        return self

    @property
    def H(self) -> "Multiply":
        return Multiply(self.decomposition, jnp.conj(self.factor)) if jnp.iscomplexobj(self.factor) else self

    @property
    def in_structure(self) -> Structure:
        return Structure(self.decomposition.layout(), space="field")

    def result_structure(self, given: Structure) -> Structure:
        kind = "complex" if np.iscomplexobj(self.factor) else given.kind
        return replace(self.in_structure, kind=kind).following(given)
