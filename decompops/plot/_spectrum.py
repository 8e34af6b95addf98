"""`spectrum` draws the power or the energy of a field as a function of the wavenumber."""

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any, Literal, get_args

import jax.numpy as jnp
import numpy as np

from .._common.check import check_number
from .._core.layout import Field
from .._operator.transform import AbstractTransform
from ..spectral import power_spectrum
from ..spectral._check import check_fft
from ._curves import DASHES, decorate
from ._panels import Axes, axes_for
from ._planes import drawable_structure


def spectrum(
    fft: AbstractTransform,
    field: Field,
    *,
    kind: Literal["energy", "power"] = "energy",
    slopes: Sequence[float | int] = (),
    edges: Any = None,
    name: str | None = None,
    ax: Any = None,
    title: str | None = None,
    label: str | None = None,
) -> Axes:
    """Draw the energy or power spectrum of a field on logarithmic axes, with reference slopes.

    `spectral.power_spectrum` computes the spectrum. Only the sums over shells of wavenumbers are gathered. Every
    process must call this function, and every process gets the whole figure.

    The power spectrum P(k) is summed over the components of the field. The energy spectrum is
    `E(k) = S k^(d-1) P(k) / (2 (2π)^d)`, where `d` is the number of transformed axes and `S` is the area of the unit
    sphere in `d` dimensions (4π in three, 2π in two, 2 in one). The integral of E(k) over k is half the mean of |u|².

    !!! example

        ```python
        ax = plot.spectrum(fft, before, slopes=(-5 / 3,), name="t = 0")
        plot.spectrum(fft, after, name="t = 10", ax=ax)
        ```

    **Arguments:**

    - `fft`: the transform, built with a `shape`, and with `real=True` if the field is real.
    - `field`: a field with the shape of the grid, with or without padding. It may have one leading axis of components.
        It must be real, unless the transform takes complex fields.
    - `kind`: "energy" or "power".
    - `slopes`: exponents of k. For each exponent, a dashed line `c k**slope` is drawn, with the smallest `c` for which
        the line is nowhere below the spectrum.
    - `edges`: the bounds of the shells, as for `spectral.power_spectrum`.
    - `name`: the name of the spectrum in the legend.
    - `ax`: matplotlib's `Axes` to draw on. The default is a new figure.
    - `title`: the title.
    - `label`: the label of the vertical axis: the drawn quantity and its unit. The default is "E(k)" or "P(k)".

    **Returns:** the `Axes`.

    **Raises:** `ImportError` if matplotlib is not installed; `ValueError` or `TypeError` if `spectral.power_spectrum`
    or `slice` would refuse an argument; `ValueError` if the field has no power at k > 0.
    """
    if kind not in get_args(Literal["energy", "power"]):
        raise ValueError(f'`kind` must be "energy" or "power"; got {kind!r}.')
    for slope in slopes:
        check_number("slopes", slope)
    check_fft(fft)
    drawable_structure(fft, field, real=not fft.takes_complex)
    measured = power_spectrum(fft, field, edges=edges)
    # Components may be sharded, so the devices sum them. The result is replicated.
    power = jnp.sum(measured.power, 0) if measured.power.ndim > 1 else measured.power
    k, density = np.asarray(measured.k, float), np.asarray(power, float)
    # If a power is below `eps**2` times the largest power, it is a rounding error, and is not drawn.
    shown = density > float(jnp.finfo(power.dtype).eps) ** 2 * density.max(initial=0)
    k, density = k[shown & (k > 0)], density[shown & (k > 0)]
    if not k.size:
        raise ValueError("`field` must have power in a shell of wavenumbers with k > 0; got no power there.")
    if kind == "energy":
        ndim = len(fft.transformed)
        sphere = 2 * math.pi ** (ndim / 2) / math.gamma(ndim / 2)
        density = sphere * k ** (ndim - 1) * density / (2 * (2 * math.pi) ** ndim)

    (axes,) = axes_for(ax, 1)
    axes.plot(k, density, label=name)
    for number, slope in enumerate(slopes):
        tangent = (density * k**-slope).max() * k**slope
        axes.plot(k, tangent, color="black", linestyle=DASHES[number % len(DASHES)], label=f"$k^{{{_text(slope)}}}$")
    decorate(axes, "k", f"{kind[0].upper()}(k)" if label is None else label, title, "xy")
    return axes


def _text(slope: float | int) -> str:
    """Return a slope as text: as a fraction such as "-5/3" if its denominator is below ten."""
    fraction = Fraction(slope).limit_denominator(9)
    return str(fraction) if math.isclose(fraction, slope, rel_tol=1e-6) else f"{slope:g}"
