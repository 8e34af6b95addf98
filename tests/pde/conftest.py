"""The backend of the tests of equations."""

import os

import pytest


@pytest.fixture(autouse=True, scope="module")
def _backend(request):
    """Let operators take the backend that users get, except in test_equations.py: XLA compiles its FFTs slowly."""
    with pytest.MonkeyPatch.context() as patch:
        if os.environ.get("DECOMPOPS_BACKEND") == "xla" and request.path.stem != "test_equations":
            patch.delenv("DECOMPOPS_BACKEND")
        yield
