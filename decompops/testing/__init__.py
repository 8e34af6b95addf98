"""Checks for your own operators: adjoints, derivatives, and results that are the same on every mesh.

Each check raises `AssertionError`, and its first line names the operator. Use it with pytest or without:

```python
from decompops import testing

testing.assert_adjoint(fft)
```

The checks hold whole arrays on each host, so use small grids. On several processes, all must call a check.
"""

from ._checks import (
    assert_adjoint as assert_adjoint,
    assert_derivative as assert_derivative,
    assert_same_on_meshes as assert_same_on_meshes,
    assert_transposed as assert_transposed,
    random_input as random_input,
    tolerance as tolerance,
)
