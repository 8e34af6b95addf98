"""decompops as a solver of Mosaic's problems ns-3d-grid (F3) and ns-grid (F2): an entry in Mosaic's interface."""

# Mosaic's packages are not installed with decompops, and the fields of a schema exist only at run time:
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false

from typing import Any, Literal

import numpy as np
import periodic_flow
from mosaic_shared.problems.navier_stokes_grid import InputSchema as GridInput, OutputSchema as GridOutput
from mosaic_shared.schema_types import make_differentiable
from pydantic import Field, model_validator


class InputSchema(make_differentiable(GridInput, ["v0", "viscosity", "dt"])):
    """The inputs of Mosaic's solvers on grids, and the order of the steps."""

    order: Literal[1, 2, 3, 4] = Field(description="Order of the exponential integrator", default=2)

    @model_validator(mode="after")
    def _check_periodic(self) -> "InputSchema":
        if self.obstacle is not None or not self.boundary_conditions.is_fully_periodic:
            raise ValueError("`boundary_conditions` must be periodic, without an `obstacle`: this solver has no walls.")
        return self


class OutputSchema(make_differentiable(GridOutput, ["result"])):
    """The velocity after the last step."""


def arguments(inputs: InputSchema) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Return the differentiable inputs, and those that are fixed when the program is compiled."""
    numbers = {"v0": np.asarray(inputs.v0, np.float32)}
    numbers |= {name: np.asarray(getattr(inputs, name), np.float32).reshape(()) for name in ("viscosity", "dt")}
    return numbers, {"steps": inputs.steps, "length": inputs.domain_extent, "order": inputs.order}


def apply(inputs: InputSchema) -> dict[str, np.ndarray]:
    """Return the velocity after `steps` steps."""
    numbers, fixed = arguments(inputs)
    return {"result": np.asarray(periodic_flow.advance(**numbers, **fixed))}


def vector_jacobian_product(
    inputs: InputSchema, vjp_inputs: set[str], vjp_outputs: set[str], cotangent_vector: dict[str, Any]
) -> dict[str, np.ndarray]:
    """Return the derivatives by `vjp_inputs`, applied to the cotangent of the result."""
    del vjp_outputs  # There is only one differentiable output.
    numbers, fixed = arguments(inputs)
    pulled = periodic_flow.pull_back(np.asarray(cotangent_vector["result"], np.float32), numbers, **fixed)
    return {name: np.asarray(pulled[name]).reshape(np.shape(getattr(inputs, name))) for name in vjp_inputs}


def abstract_eval(abstract_inputs: Any) -> dict[str, Any]:
    """Return the shape and the type of the result."""
    return {"result": {"shape": tuple(abstract_inputs.v0.shape), "dtype": "float32"}}
