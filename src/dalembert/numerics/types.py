"""Types of signatures: what an array means and its shape, which the law tests check by beartype.

Unless jaxtyping was imported before dalembert, a shape is just `Any`: a GPU machine may have nothing but jax and numpy.
Signatures name shapes by the aliases below: the same letter is the same length within one call. A NumPy array passes
for a JAX array in them.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jax.typing import ArrayLike as ArrayLike

if TYPE_CHECKING:
    from jax import Array as Array
    from jaxtyping import Float as Float

    Scalar = Array | float
else:
    if "jaxtyping" in sys.modules:  # whoever wants shapes checked has loaded it; to load it takes 70 ms of every start
        from jaxtyping import Float
    else:

        class Float:
            """Stands for jaxtyping's class where that is not loaded."""

            def __class_getitem__(cls, item: Any) -> Any:
                return Any

    Array = jax.Array | np.ndarray
    Scalar = Float[ArrayLike, ""] | int

AnyArray = Array
Element = Any  # a group element: an array, or a tuple of arrays on a product
Parameters = Any  # a pytree of a user's parameters
Controls = Any  # a pytree of inputs
Number = Float[AnyArray, ""]
Velocity = Float[AnyArray, "n"]  # xi in the Lie algebra, left-trivialised
Covector = Float[AnyArray, "n"]  # dual to a velocity: momentum, force
Vector = Float[AnyArray, "k"]  # a point or vector of the space that matrices act on
Matrix = Float[AnyArray, "k k"]  # an element of a matrix group, or hat(xi)
BorderedMatrix = Float[AnyArray, "k+1 k+1"]
LinearMap = Float[AnyArray, "m n"]
Angles = Float[AnyArray, "a"]
FourVector = Float[AnyArray, "4"]
AnyShape = Float[AnyArray, "*shape"]
