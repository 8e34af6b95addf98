"""`Expansion`: what the numbers of a spectrum mean."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .._basis.base import AbstractBasis


@dataclass(frozen=True)
class Expansion:
    """What the numbers of a spectrum mean, whatever the mesh and the storage order.

    - `bases`: the basis of each grid axis.
    - `shape`: the number of grid points along each axis.
    - `modes`: the number of points of a grid that has only the kept modes.
    - `norm`: the direction of the transform that is scaled.
    - `nyquist`: how a truncation treats Nyquist modes; see the argument `nyquist` of `FFT`.
    """

    bases: tuple[AbstractBasis, ...]
    shape: tuple[int, ...]
    modes: tuple[int, ...]
    norm: str
    nyquist: bool

    @property
    def facts(self) -> dict[str, Any]:
        """The expansion as strings, numbers and lists, which a file can store."""
        bases, shape, modes = list(map(repr, self.bases)), list(self.shape), list(self.modes)
        return {"bases": bases, "shape": shape, "modes": modes, "norm": self.norm, "nyquist": self.nyquist}

    def factor_from(self, known: Mapping[str, Any]) -> float:
        """Return the factor that turns the coefficients of another expansion into the coefficients of this one.

        `known` has the `facts` of the other expansion. Raises `ValueError` if the two expansions do not have the same
        coefficients up to a factor. The error names the two values that differ.
        """
        own = self.facts
        for name in ("bases", "modes"):
            if own[name] != known[name]:
                raise Mismatch(name, known[name], own[name])
        nyquist = _has_nyquist(known["shape"], self.modes, known["nyquist"])
        if nyquist != _has_nyquist(self.shape, self.modes, self.nyquist):
            name = "shape" if own["nyquist"] == known["nyquist"] else "nyquist"
            raise Mismatch(name, known[name], own[name])
        ortho = [norm for norm in (known["norm"], self.norm) if norm == "ortho"]
        # For cosines and sines, "ortho" also changes the weights of the first and last coefficients.
        if len(ortho) == 1 and any(basis.orthogonalized() != basis for basis in self.bases):
            raise Mismatch("norm", known["norm"], self.norm)
        return self._scale(self.shape, self.norm) / self._scale(known["shape"], known["norm"])

    def _scale(self, shape: Any, norm: str) -> float:
        """Return the factor between the coefficients and those of `norm="forward"`, which do not depend on the grid."""
        points = math.prod(1 / basis.inverse_scale(n) for basis, n in zip(self.bases, shape))
        return {"backward": points, "ortho": math.sqrt(points), "forward": 1.0}[norm]


class Mismatch(ValueError):
    """The error for coefficients that cannot be converted, because an option of their transforms differs.

    - `option`: the name of the option.
    - `known`, `own`: the value of the transform that made the coefficients, and the value of the other transform.
    """

    def __init__(self, option: str, known: Any, own: Any):
        super().__init__(f"their `{option}` is {known!r}, not {own!r}")
        self.option, self.known, self.own = option, known, own


def _has_nyquist(shape: Any, modes: tuple[int, ...], nyquist: bool) -> tuple[bool, ...]:
    """Return for each axis whether the spectrum has the Nyquist mode of `modes`. A truncation may set it to zero."""
    return tuple(m % 2 == 1 or m == n or nyquist for n, m in zip(shape, modes))
