"""What the tests of `decompops.io` share."""

import jaxtyping
import pytest


@pytest.fixture
def unchecked():
    """Annotations are not checked, as in a user's program."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)
