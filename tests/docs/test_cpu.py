"""The code of docs/cpu.md."""

import re

from pages import blocks, check


CHECK = """
import numpy as np
assert repr(fft.decomposition.backend) == {backend!r}
u = np.random.default_rng(0).standard_normal((64, 64, 64)).astype(np.complex64)
for operator in (fft, dops.FFT3D(mesh, backend=dops.XLA())):
    np.testing.assert_allclose(operator(u), np.fft.fftn(u), atol=1e-2)
"""


def test_the_code(monkeypatch):
    monkeypatch.delenv("DECOMPOPS_BACKEND", raising=False)  # The other tests set it to `xla`.
    (code,) = blocks("docs/cpu.md")
    (backend,) = re.findall(r"^fft\.decomposition\.backend  # (.*)$", code, re.MULTILINE)
    check(code + CHECK.format(backend=backend))
