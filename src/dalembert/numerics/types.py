"""Types of signatures: what an array means and, where jaxtyping is installed, its shape, which the law tests check by beartype.

A machine with a GPU may have nothing but jax and numpy; there a shape is just `Any`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from jax import Array
from jax.typing import ArrayLike

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int
else:
    try:
        from jaxtyping import Bool, Float, Int
    except ImportError:

        class Float:
            """Stands for jaxtyping's class where that is not installed."""

            def __class_getitem__(cls, item: Any) -> Any:
                return Any

        Bool = Int = Float

Element = Any  # a group element: an array, or a tuple of arrays on a product
Parameters = Any  # a pytree of a user's parameters
Controls = Any  # a pytree of inputs
Scalar = Float[ArrayLike, ""] | int
Velocity = Float[ArrayLike, "n"]  # xi in the Lie algebra, left-trivialised
Covector = Float[ArrayLike, "n"]  # dual to a velocity: momentum, force
Matrix = Float[ArrayLike, "m n"]

__all__ = ["Array", "ArrayLike", "Bool", "Controls", "Covector", "Element", "Float", "Int", "Matrix", "Parameters", "Scalar", "Velocity"]
