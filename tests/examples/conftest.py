"""Examples run with the default backend, as those of users do. They also compile in less time with compiled kernels."""

import pytest


@pytest.fixture(autouse=True, scope="module")
def default_backend():
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("DECOMPOPS_BACKEND")  # tests/conftest.py sets it.
        yield
