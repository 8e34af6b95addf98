"""The benchmark's cases of particles: a deposit, a read, and an exchange. There is one particle for each cell."""

import importlib
import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from ... import XLA, AbstractBackend, Box, Decomposition
from ...extend import Counters
from ...particles import ParticleMesh, Particles
from ..hlo import collectives
from .program import Contestant, compile_for, gathered, random_field


PARTICLES = ("deposit", "read", "exchange")
MOVERS = 0.05  # the share of particles that an exchange brings to other devices


@dataclass(frozen=True)
class ParticleTask:
    """A deposit on a grid, a read of a field, or an exchange, of random particles with linear windows.

    Particles have a velocity and a number beside their position. One in 20 changes its device in an exchange.
    """

    operator: str
    mesh: Mesh
    shape: tuple[int, ...]
    dtype: np.dtype
    backend: AbstractBackend

    @cached_property
    def positions(self) -> np.ndarray:
        rng = np.random.default_rng(0)
        return rng.random((math.prod(self.shape), len(self.shape)), self.dtype) * np.array(self.shape, self.dtype)

    @cached_property
    def moved(self) -> np.ndarray:
        """The positions after some particles have moved to any place."""
        rng = np.random.default_rng(1)
        moves = rng.random(len(self.positions)) < MOVERS * self.mesh.size / max(1, self.mesh.size - 1)
        return np.where(moves[:, None], rng.permutation(self.positions), self.positions)

    @cached_property
    def field(self) -> np.ndarray:
        return random_field(self.shape, self.dtype)

    def entrants(self) -> Iterator[tuple[str, Callable[[], Contestant], Any]]:
        answer = self.answer()
        yield "decompops", lambda: self.contestant(self.backend), answer
        if not isinstance(self.backend, XLA):
            yield "our XLA backend", lambda: self.contestant(XLA()), answer
        if self.operator == "exchange":
            yield "a copy of the particles", self._copy, answer
        else:
            yield "JaxPM", self._jaxpm, answer

    def answer(self) -> np.ndarray:
        """Return the right answer in double precision."""
        if self.operator == "exchange":
            return self.moved
        first = np.floor(self.positions).astype(int)
        t = self.positions.astype(np.float64) - first
        total = np.zeros(math.prod(self.shape) if self.operator == "deposit" else len(t))
        for corner in itertools.product((0, 1), repeat=len(self.shape)):
            share = np.prod(np.where(corner, t, 1 - t), axis=1)
            cells = np.ravel_multi_index(tuple((first + corner).T % np.array(self.shape)[:, None]), self.shape)
            if self.operator == "deposit":
                total += np.bincount(cells, share, minlength=len(total))
            else:
                total += share * self.field.ravel()[cells]
        return total.reshape(self.shape) if self.operator == "deposit" else total

    def report(self, counted: Counters) -> dict[str, Any]:
        """Return the communication and memory of one device. `counted` holds the messages of kernels in one run."""
        pm, arguments = self._state(self.backend)
        compiled = compile_for(self._function(pm), *arguments)
        found, memory = collectives(compiled.as_text()), compiled.memory_analysis()
        whole = sum(x.nbytes for x in jax.tree.leaves(arguments[0]))
        block, moving = whole // self.mesh.size, MOVERS * len(self.positions) / arguments[0].positions.shape[0]
        here = max(1, self.mesh.size // jax.process_count())
        temporary = None if memory is None else memory.temp_size_in_bytes
        return {
            "collectives": [
                {"kind": c.kind, "group_size": c.group_size, "count": c.times, "bytes": c.times * c.bytes}
                for c in found
            ],
            "kernel_messages": counted.messages,
            "communicated_bytes": sum(c.times * c.bytes for c in found) + counted.sent_bytes // here,
            "least_communicated_bytes": round(moving * block) if self.operator == "exchange" else 0,
            "block_bytes": block,
            "temporary_bytes": temporary,
            "temporary_blocks": None if temporary is None else temporary / block,
            "temporary_bytes_of_parts": {},
            "kernel_workspace_bytes": counted.workspace_bytes,
            "least_bytes_per_fft_pass": [],
        }

    def _state(self, backend: AbstractBackend) -> tuple[ParticleMesh, tuple[Any, ...]]:
        box = Box(tuple(map(float, self.shape)))
        dec = Decomposition(self.mesh, shape=self.shape, box=box, pad=True, backend=backend)
        pm, number = ParticleMesh(dec, "cic"), np.arange(len(self.positions), dtype=np.int32)
        p = pm.place(self.positions, velocity=self.positions, id=number, moved=self.moved)
        at = p["moved"] if self.operator == "exchange" else p.positions
        attributes = {name: p[name] for name in ("velocity", "id")}
        p = Particles(at, attributes, p.counts, p.needed, p.invalid)
        return pm, (p, dec.shard(self.field)) if self.operator == "read" else (p,)

    def _function(self, pm: ParticleMesh) -> Callable:
        return {"deposit": pm.deposit, "read": pm.read, "exchange": pm.exchange}[self.operator]

    def contestant(self, backend: AbstractBackend) -> Contestant:
        """Return our program on a backend."""
        pm, arguments = self._state(backend)
        compiled = compile_for(self._function(pm), *arguments)
        return Contestant(lambda: compiled(*arguments), partial(self._collect, pm, arguments[0]))

    def _copy(self) -> Contestant:
        pm, (p,) = self._state(self.backend)
        compiled = compile_for(partial(jax.tree.map, jnp.copy), p)
        return Contestant(lambda: compiled(p), partial(self._collect, pm, p))

    def _collect(self, pm: ParticleMesh, p: Particles, result: Any) -> np.ndarray:
        match self.operator:
            case "deposit":
                return pm.decomposition.gather(result)
            case "read":
                return pm.gather(p.replace(found=result))["found"]
        return pm.gather(result)["positions"]

    def _jaxpm(self) -> Contestant:
        painting: Any = importlib.import_module("jaxpm.painting")  # in no extra, because it is a peer only
        if len(self.shape) != 3:
            raise ValueError(f"JaxPM has grids of three axes only; got {self.shape}")
        device = jax.local_devices()[0]
        zeros = np.zeros(self.shape, self.dtype)
        if self.operator == "deposit":
            function, arrays = painting.cic_paint, (zeros, self.positions)
        else:
            function, arrays = painting.cic_read, (self.field, self.positions)
        arguments = [jax.device_put(x, device) for x in arrays]
        compiled = compile_for(lambda grid, positions: function(grid, positions), *arguments)
        return Contestant(lambda: compiled(*arguments), gathered, "one device", alone=True)
