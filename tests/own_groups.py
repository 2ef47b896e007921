"""Two groups of one's own, as docs/own-group.md shows them."""

import jax.numpy as jnp

from dalembert.groups import MatrixGroup


class Heisenberg(MatrixGroup):
    """Upper triangular 3 x 3 matrices [[1, x, z], [0, 1, y], [0, 0, 1]]; velocities (x', y', z')."""

    def hat(self, xi):
        x, y, z = xi
        return jnp.array([[0.0, x, z], [0.0, 0.0, y], [0.0, 0.0, 0.0]])

    def vee(self, matrix):
        return jnp.array([matrix[0, 1], matrix[1, 2], matrix[0, 2]])


class SU2(MatrixGroup):
    """Unit quaternions as 4 x 4 matrices of left multiplication; velocities are angular velocities."""

    def hat(self, xi):
        a, b, c = xi[0] / 2, xi[1] / 2, xi[2] / 2
        return jnp.array([[0.0, -a, -b, -c], [a, 0.0, -c, b], [b, c, 0.0, -a], [c, -b, a, 0.0]])

    def vee(self, matrix):
        m = matrix - matrix.T
        return 0.5 * jnp.array([m[1, 0] + m[3, 2], m[2, 0] + m[1, 3], m[3, 0] + m[2, 1]])
