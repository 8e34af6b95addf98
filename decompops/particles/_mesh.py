"""`ParticleMesh`: particles that move freely over the devices that hold a grid."""

import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import NamedSharding, PartitionSpec
from jaxtyping import Float, Key, Shaped, UInt32

from .._backend.base import Caller
from .._common.agreement import check_same_array, contents, differing, raised_by_all_of
from .._common.check import check_count, check_dtype, check_flag, check_inexact, check_number, check_untraced
from .._common.host import device_array, fitting, host_array
from .._common.keys import agreed_key
from .._core.decomposition import Decomposition, check_decomposition, check_field
from .._core.window import Window
from .._operator.transform import real_dtype
from ._contrast import contrast, interlaced, shot_noise
from ._deposit import deposited, read_at
from ._exchange import exchanged, grown
from ._home import Home, home_of
from ._lattice import on_lattice
from ._load import Load
from ._meshes import loads
from ._particles import Particles, of_slots, one_each, slots
from ._sample import as_density, sampled
from ._sum import mean, summed
from ._windows import WindowName, window_of


_ALL = "each process keeps its own particles of all", "Pass all particles on every process."


class ParticleMesh(eqx.Module):
    """Particles and a grid on the same devices: each particle is on the device that owns its cell.

    Point `i` of the grid has the coordinate `i * spacing`, and a particle with the coordinate `x` is in the cell
    `floor(x / spacing)`. Along a periodic axis, positions are taken modulo the length of the box, and may lie outside
    of it, as long as their rounding errors are less than a cell. Along an open axis, particles may leave the box; the
    outermost cells own them, and they deposit nothing there.

    !!! example

        ```python
        dec = dops.Decomposition(mesh, shape=(64, 64, 64), box=dops.Box(100.0))
        pm = particles.ParticleMesh(dec, "tsc")
        p = pm.place(positions, mass=m)
        density = pm.deposit(p, p["mass"])     # mass in each cell: a field
        force = pm.read(p, field)              # the field at each particle
        p = pm.exchange(p.replace(p.positions + force))
        ```

    **Arguments:**

    - `decomposition`: the grid and its devices. Fields lie in the pencils of the last axis.
    - `window`: how a particle is shared among its neighbouring cells: "ngp" (nearest grid point), "cic" (cloud in
        cell), "tsc" (triangular shaped cloud) or "pcs" (piecewise cubic spline); or a `Window`.
    - `periodic`: whether the box is periodic: a bool for all axes, or one for each axis.

    **Raises:** `TypeError` if `decomposition` is not a `Decomposition`; `ValueError` for an unknown window or for
    `periodic` with a wrong number of entries.
    """

    decomposition: Decomposition
    window: WindowName | Window = eqx.field(static=True, default="cic")
    periodic: bool | tuple[bool, ...] = eqx.field(static=True, default=True)

    def __check_init__(self):
        check_decomposition(self.decomposition)
        window_of(self.window)
        flags = self.periodic if isinstance(self.periodic, tuple) else (self.periodic,) * self._ndim
        if len(flags) != self._ndim:
            raise ValueError(f"`periodic` must be a bool, or one for each of {self._ndim} axes; got {self.periodic!r}.")
        for flag in flags:
            check_flag("periodic", flag)

    def place(
        self,
        positions: Shaped[np.ndarray, "n ndim"],
        *,
        capacity: int | None = None,
        room: float | int = 0.25,
        **attributes: Any,
    ) -> Particles:
        """Place particles on the devices that own their cells. Every process passes the same arrays.

        **Arguments:**

        - `positions`: real coordinates of shape `(n, ndim)`, in units of the box.
        - `capacity`: the number of slots of each device; `None` to derive it from `room`.
        - `room`: how many more slots than particles the fullest device has, as a part of these particles: by default a
            quarter. There are at least eight more. A `capacity` overrides it.
        - `attributes`: arrays of shape `(n, ...)` by name. Their dtypes are those that `Particles` takes.

        **Returns:** the particles, in the order of `positions` on each device.

        **Raises:** `ValueError` for arrays of other shapes or that differ between processes, for positions that are not
        finite, for a `capacity` that is too small, for a negative `room`, and for integers of 64 bits, such as
        identifiers, that do not fit 32 bits if JAX is not in 64-bit mode; `TypeError` for traced arrays and for other
        dtypes.
        """
        dec, positions = self.decomposition, self._on_host(positions, "place")
        check_untraced("attributes", attributes, "place")
        with raised_by_all_of(dec.mesh):
            arrays = {name: fitting(host_array(value, name), name) for name, value in attributes.items()}
            for name, array in arrays.items():
                check_dtype(name, array.dtype)
                if array.shape[:1] != positions.shape[:1]:
                    raise ValueError(
                        f"`{name}` must have one row for each of {len(positions)} particles; got {array.shape}."
                    )
            home = self._home
            owners = np.asarray(home.owners(positions, dec.box_lengths))
            counts = np.bincount(owners, minlength=home.devices)
            capacity = slots(counts, capacity, room)
        if others := differing(dec.mesh, (capacity, [(name, contents(array)) for name, array in arrays.items()])):
            attributes = {name: f"{array.dtype}{array.shape}" for name, array in arrays.items()}
            raise ValueError(
                f"`capacity` and the attributes must be the same on every process, because {_ALL[0]}; got {capacity} "
                f"and {attributes} on process {jax.process_index()}, others on {others}. {_ALL[1]}"
            )
        order = np.argsort(owners, kind="stable")
        starts = np.cumsum(counts) - counts

        def in_slots(array: np.ndarray) -> Array:
            shape = (home.devices * capacity, *array.shape[1:])

            def block(index):
                device = (index[0].start or 0) // capacity
                own = array[order[starts[device] : starts[device] + counts[device]]]
                return np.pad(own, [(0, capacity - len(own)), *[(0, 0)] * (array.ndim - 1)])

            return jax.make_array_from_callback(shape, home.sharding, block)

        placed = {name: in_slots(array) for name, array in arrays.items()}
        everywhere = NamedSharding(dec.mesh, PartitionSpec())
        number = lambda values: jax.device_put(values.astype(np.int32), everywhere)
        return Particles(in_slots(positions), placed, number(counts), number(counts), number(np.zeros_like(counts)))

    def lattice(
        self,
        per_axis: int = 1,
        *,
        offset: float | int = 0.0,
        capacity: int | None = None,
        room: float | int = 0.25,
        dtype: Any = None,
    ) -> Particles:
        """Return particles at equal distances, each on its device. Nothing is computed on the host.

        **Arguments:**

        - `per_axis`: the number of particles for each cell along each axis. With 1, there is a particle at each point
            of the grid.
        - `offset`: how far all particles are shifted along each axis, in distances between two particles: from 0 up to,
            but not including, 1. With 0.5 and one particle for each cell, they are in the centres of the cells.
        - `capacity`, `room`: the number of slots of each device, as in `place`.
        - `dtype`: the real dtype of the positions; `None` for JAX's default.

        **Returns:** particles with the attribute `id`: their number in the order of the whole lattice, with the last
        axis fastest.

        **Raises:** `ValueError` for an `offset`, a `capacity` or a `room` out of range, and for more particles than
        integers can count.
        """
        k, blocks, home = check_count("per_axis", per_axis), self.decomposition.blocks(-1), self._home
        total = math.prod(blocks.lengths) * k**self._ndim
        if total > jnp.iinfo(int).max:
            raise ValueError(
                f"`per_axis` must be such that JAX's integers can count all particles; got {total} particles. Call "
                '`jax.config.update("jax_enable_x64", True)`.'
            )
        if not 0 <= (offset := float(check_number("offset", offset))) < 1:
            raise ValueError(f"`offset` must be at least 0 and less than 1; got {offset!r}.")
        most = math.prod(blocks.block_shape) * k**self._ndim
        return on_lattice(home, k, offset, slots([most], capacity, room), real_dtype(dtype), self._caller())

    def sample(
        self, density: Float[Array | np.ndarray, "*grid"], key: Key[Array, ""] | UInt32[Array, "_"], *, capacity: int
    ) -> Particles:
        """Draw particles from a density (a Poisson process). The same key gives the same particles on every mesh.

        **Arguments:**

        - `density`: the expected number of particles in the cell around each point of the grid.
        - `key`: a key of `jax.random`.
        - `capacity`: the number of slots of each device. A quarter more than the particles that are expected on the
            fullest device is enough, unless they are few.

        **Returns:** particles without attributes, at random places in the cells. They have no derivative with respect
        to `density`. Call `check`, which raises `ValueError` if the capacity was too small: then draw it again.

        **Raises:** `ValueError` if `density` is negative or not finite. If it is traced, `overflows` is true instead.
        `ValueError` if its shape is not that of the grid; `TypeError` if it is not real.
        """
        density, capacity = as_density(self.decomposition, density), check_count("capacity", capacity)
        return sampled(self._home, density, agreed_key(self.decomposition.mesh, key), capacity, self._caller())

    def exchange(self, p: Particles) -> Particles:
        """Bring each particle to the device that owns its cell. Nothing else changes, and no particle is ever lost.

        If a device has too few slots for its particles, or a position is NaN or infinite, no particle moves, and
        `p.overflows` is true: see `Particles.check`. Then `deposit` returns NaN where particles are not at home.

        The exchange is linear in the attributes, so JAX differentiates it in both modes.
        """
        return exchanged(home_of(p, self._home), p, self._caller())

    def grow(self, p: Particles, capacity: int) -> Particles:
        """Return the particles with another capacity. Raises `ValueError` if it is smaller than the present one."""
        home = home_of(p, self._home)
        if check_count("capacity", capacity) < p.capacity:
            raise ValueError(f"`capacity` must be at least {p.capacity}, the present one; got {capacity}.")
        return grown(home, p, capacity)

    def deposit(
        self, p: Particles, values: Shaped[Array | np.ndarray, "slots ..."] | None = None
    ) -> Shaped[Array, "*field"]:
        """Add the values of all particles to the cells around them.

        **Arguments:**

        - `p`: particles. Each must be on the device that owns its cell, where `exchange` brings it.
        - `values`: real or complex numbers of shape `(slots, *components)`, such as `p["mass"]`; by default, one for
            each particle.

        **Returns:** a field of shape `(*components, nx, ny, nz)`, in single precision for values of half precision. Its
        sum over the grid is the sum of the values, if no particle is near the end of an open axis. A device whose
        particles are not all its own returns NaN.

        JAX differentiates the result with respect to values and positions, in both modes and to any order that the
        window has; the transpose with respect to the values is `read`.
        """
        return deposited(home_of(p, self._home), window_of(self.window), p, _values(p, values))

    def deposit_interlaced(
        self, p: Particles, values: Shaped[Array | np.ndarray, "slots ..."] | None = None
    ) -> Shaped[Array, "*field"]:
        """Deposit twice, the second time on a grid shifted by half a cell, and take the mean of the modes of both.

        A grid cannot tell modes beyond its Nyquist wavenumber from modes on the grid (aliasing). In the mean of both
        deposits, the images that are an odd number of grids away cancel: the strongest ones. Modes with a Nyquist
        wavenumber are those of `deposit`.

        **Arguments** and **Returns** are those of `deposit`. **Raises:** `ValueError` if an axis is open.

        Source: Hockney & Eastwood, Computer Simulation Using Particles (1988), section 7-8; Sefusatti, Crocce,
        Scoccimarro & Couchman, MNRAS 460 (2016).
        """
        self.check_periodic()
        return interlaced(home_of(p, self._home), self.window, p, _values(p, values))

    def contrast(
        self, p: Particles, weights: Float[Array | np.ndarray, " slots"] | None = None
    ) -> Float[Array, "*grid"]:
        """Return the density contrast `ρ / ρ̄ - 1` for statistics: interlaced, and with the window divided out.

        The power of particles at random is then the same at all wavenumbers: their `shot_noise`. At the Nyquist
        wavenumber, images of other modes add at most 1.5% to it with the window "cic", 0.15% with "tsc" and 0.02% with
        "pcs". A mode with a Nyquist wavenumber along an axis is a sum of two, so it is divided by the root of two.

        !!! example

            ```python
            power = spectral.power_spectrum(fft, pm.contrast(p)).power - pm.shot_noise(p)
            ```

        **Arguments:** `weights`, real numbers such as masses; by default, one for each particle.
        """
        self.check_periodic()
        return contrast(home_of(p, self._home), self.window, p, _weights(p, weights))

    def shot_noise(self, p: Particles, weights: Float[Array | np.ndarray, " slots"] | None = None) -> Float[Array, ""]:
        """Return the power spectrum of particles at random, in units of volume: `V Σ w² / (Σ w)²` for weights w."""
        return shot_noise(home_of(p, self._home), p, _weights(p, weights))

    def check_periodic(self) -> None:
        """Raise `ValueError` if an axis is open."""
        if not all(self._home.periodic):
            raise ValueError(f"`periodic` must be True along all axes here; got {self.periodic!r}.")

    def read(self, p: Particles, field: Shaped[Array | np.ndarray, "*field"]) -> Shaped[Array, "slots ..."]:
        """Read a field at all particles: the transpose of `deposit`, which is an interpolation.

        **Arguments:**

        - `p`: particles. Each must be on the device that owns its cell, where `exchange` brings it.
        - `field`: real or complex numbers of shape `(*components, nx, ny, nz)`.

        **Returns:** an array of shape `(slots, *components)`: zeros in slots without a particle. A device whose
        particles are not all its own returns NaN.

        **Raises:** `TypeError` if `field` holds integers; `ValueError` if its shape is not that of the grid.
        """
        field = check_inexact("field", device_array(field, "field", self.decomposition.mesh))
        check_field("field", field, self.decomposition)
        return read_at(home_of(p, self._home), window_of(self.window), p, field)

    def sum(self, p: Particles, values: Shaped[Array | np.ndarray, "slots ..."]) -> Shaped[Array, "..."]:
        """Add up the values of all particles, such as their energies. Slots without a particle do not count.

        **Arguments:**

        - `p`: particles.
        - `values`: numbers of shape `(slots, *components)`.

        **Returns:** the sum, of shape `(*components)` and with the dtype of `jnp.sum(values)`.
        """
        return summed(home_of(p, self._home), p, of_slots(p, values), self._caller())

    def mean(self, p: Particles, values: Shaped[Array | np.ndarray, "slots ..."]) -> Shaped[Array, "..."]:
        """Return the mean of real or complex `values` over all particles: `sum`, divided by the number of particles."""
        return mean(home_of(p, self._home), p, of_slots(p, values), self._caller())

    def gather(self, p: Particles) -> dict[str, np.ndarray]:
        """Gather all particles on every process.

        **Returns:** NumPy arrays `(n, ...)` by name, "positions" included. If there is an attribute `id`, the
        particles are in the order of its first column, then of the next one. Otherwise they are in the order of the
        devices.
        """
        check_untraced("p", p, "gather")
        replicated = NamedSharding(self.decomposition.mesh, PartitionSpec())
        here = lambda x: x.is_fully_addressable or x.is_fully_replicated
        whole = lambda x: np.asarray(x if here(x) else jax.device_put(x, replicated))
        counts, capacity = whole(p.counts), p.capacity
        live = (np.arange(capacity) < counts[:, None]).ravel()
        found = {"positions": whole(p.positions)[live]} | {k: whole(v)[live] for k, v in p.attributes.items()}
        if "id" not in found:
            return found
        columns = found["id"].reshape(len(found["id"]), math.prod(found["id"].shape[1:]))
        order = np.lexsort(columns.T[::-1])  # By the first column, then by the next one.
        return {name: array[order] for name, array in found.items()}

    def loads(self, p: Particles | Float[np.ndarray, "n ndim"]) -> dict[tuple[int, ...], Load]:
        """Return how evenly particles would be spread over each mesh of as many devices: the best mesh first.

        !!! example

            ```python
            sizes, load = next(iter(pm.loads(positions).items()))
            mesh = jax.make_mesh(sizes, ("x", "y"))
            ```

        **Arguments:** `p`, particles on their devices, or the same NumPy array of their positions on every process.

        **Returns:** the `Load` for each choice of numbers of devices along the first axes of the grid, such as (2, 4)
        for pencils and (8, 1) for slabs of a grid of three axes. Without `pad=True`, only choices that divide the grid.

        **Raises:** `ValueError` for positions of another shape, or that are not finite; `TypeError` for traced arrays.
        """
        if isinstance(p, Particles):
            return loads(home_of(p, self._home), p)
        return loads(self._home, self._on_host(p, "loads"))

    @property
    def sharding(self) -> NamedSharding:
        """The sharding of arrays with one row for each slot."""
        return self._home.sharding

    def _on_host(self, positions: Any, function: str) -> np.ndarray:
        """Return finite positions. Raises `ValueError` for other numbers and shapes."""
        check_untraced("positions", positions, function)
        mesh, n = self.decomposition.mesh, self._ndim
        with raised_by_all_of(mesh):
            positions = host_array(positions, "positions")
            shape, dtype = positions.shape, positions.dtype
            if len(shape) != 2 or shape[1] != n or not jnp.issubdtype(dtype, jnp.floating):
                raise ValueError(f"`positions` must be real numbers of shape (n, {n}); got {shape} {dtype}.")
            if not np.isfinite(positions).all():
                bad = int(np.argmax(~np.isfinite(positions).all(axis=1)))
                raise ValueError(f"`positions` must be finite; got {positions[bad]} for particle {bad}.")
        check_same_array(mesh, positions, "positions", _ALL)
        return positions

    def _caller(self) -> Caller:
        return self.decomposition.backend.caller()

    @property
    def _ndim(self) -> int:
        return self.decomposition.ndim

    @property
    def _home(self) -> Home:
        periodic = self.periodic if isinstance(self.periodic, tuple) else (self.periodic,) * self._ndim
        return Home(self.decomposition, periodic)


def _values(p: Particles, values: Any) -> Array | None:
    """Return the values of the particles that are deposited; `None` stands for one each."""
    return None if values is None else check_inexact("values", of_slots(p, values))


def _weights(p: Particles, weights: Any) -> Array | None:
    """Return the weights of the particles; `None` stands for one each."""
    return None if weights is None else one_each("weights", p, weights)
