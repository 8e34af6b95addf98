"""`spectrum` draws the power or the energy of a field as a function of the wavenumber."""

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any, Literal

import jax.numpy as jnp
import numpy as np
from jax import Array

from .._common.check import check_choice, check_number
from .._common.host import device_array
from .._core.layout import Field
from .._operator.transform import AbstractTransform
from ..spectral import energy_spectrum, power_spectrum
from ..spectral._check import check_fft
from ..spectral._shells import wavenumber_bounds
from ..spectral._spectra import transform_of_modes
from ._arguments import list_of
from ._curves import DASHES, decorate
from ._panels import Axes, axes_for
from ._planes import drawable_structure


def spectrum(
    fft: AbstractTransform,
    field: Field,
    *,
    kind: Literal["energy", "power"] = "energy",
    slopes: float | int | Sequence[float | int] | np.ndarray | Array = (),
    edges: Any = None,
    name: str | None = None,
    ax: Any = None,
    title: str | None = None,
    label: str | None = None,
) -> Axes:
    """Draw the energy or power spectrum of a field on logarithmic axes, with reference slopes.

    `spectral.energy_spectrum` or `spectral.power_spectrum` computes the spectrum. Only the sums over shells of
    wavenumbers are gathered. Every process must call this function, and every process gets the whole figure.

    Both spectra are summed over the components of the field. The sum of the energy spectrum E(k) over all shells, times
    their widths, is half the mean of |u|².

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
    - `slopes`: an exponent of k, or several exponents. For each exponent, a dashed line `c k**slope` is drawn, with
        the smallest `c` for which the line is nowhere below the spectrum.
    - `edges`: the bounds of the shells. The default is that of `spectral.power_spectrum`, also for the energy.
    - `name`: the name of the spectrum in the legend.
    - `ax`: matplotlib's `Axes` to draw on. The default is a new figure.
    - `title`: the title.
    - `label`: the label of the vertical axis: the drawn quantity and its unit. The default is "E(k)" or "P(k)".

    **Returns:** the `Axes`.

    **Raises:** `ImportError` if matplotlib is not installed; `ValueError` or `TypeError` if `spectral.power_spectrum`
    or `slice` would refuse an argument; `ValueError` if the field has NaN or infinite values, or no power at k > 0.
    """
    check_choice("kind", kind, ("energy", "power"))
    exponents = [float(check_number("slopes", slope)) for slope in list_of(slopes)]
    check_fft(fft)
    drawable_structure(fft, field, real=not fft.takes_complex)
    bounds = wavenumber_bounds(transform_of_modes(fft), edges)
    vector = device_array(field, "field")
    vector = vector if vector.ndim > fft.decomposition.ndim else vector[None]
    if kind == "energy":
        mean_k, values, _ = energy_spectrum(fft, vector, edges=bounds)
    else:
        # Components may be sharded, so the devices sum them. The result is replicated.
        mean_k, powers, _ = power_spectrum(fft, vector, edges=bounds)
        values = jnp.sum(powers, 0)
    k, density = np.asarray(mean_k, float), np.asarray(values, float)
    if not np.isfinite(density).all():
        raise ValueError(
            "`field` must have finite values, whose squares do not overflow; got a spectrum with NaN or infinity."
        )
    # If a value is below `eps**2` times the largest value, it is a rounding error, and is not drawn.
    shown = density > float(jnp.finfo(values.dtype).eps) ** 2 * density.max(initial=0)
    k, density = k[shown & (k > 0)], density[shown & (k > 0)]
    if not k.size:
        raise ValueError("`field` must have power in a shell of wavenumbers with k > 0; got no power there.")

    (axes,) = axes_for(ax, 1)
    axes.plot(k, density, label=name)
    for number, slope in enumerate(exponents):
        tangent = (density * k**-slope).max() * k**slope
        axes.plot(k, tangent, color="black", linestyle=DASHES[number % len(DASHES)], label=f"$k^{{{_text(slope)}}}$")
    decorate(axes, "k", f"{kind[0].upper()}(k)" if label is None else label, title, "xy")
    return axes


def _text(slope: float) -> str:
    """Return a slope as text: as a fraction such as "-5/3" if its denominator is below ten."""
    fraction = Fraction(slope).limit_denominator(9)
    return str(fraction) if math.isclose(fraction, slope, rel_tol=1e-6) else f"{slope:g}"
