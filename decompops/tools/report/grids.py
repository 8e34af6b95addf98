"""The grids that the sections of a report measure."""

from collections.abc import Sequence

from ..bench.run import Case, cases
from .setting import Setting, Shape


def cases_on(operators: Sequence[str], shape: Shape, dtypes: Sequence[str], setting: Setting) -> list[Case]:
    """Return a case for each operator and each dtype, on the mesh of all devices.

    Each case is on a grid of shape `shape`, except halo exchanges. The benchmark needs blocks of equal size for halo
    exchanges, so they get the next larger grid that the mesh divides.
    """
    found, mesh = [], setting.mesh_sizes
    for operator in operators:
        grid = _divisible(shape, mesh) if operator == "halo" else shape
        found += cases([operator], [(grid, mesh)], dtypes, [False])
    return found


def _divisible(shape: Shape, mesh: tuple[int, int]) -> Shape:
    """Return the smallest grid that holds `shape` and that the mesh divides."""
    nx, ny = (-(-n // parts) * parts for n, parts in zip(shape, mesh))
    return nx, ny, shape[2]
