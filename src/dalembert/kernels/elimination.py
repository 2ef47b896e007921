"""The small linear solve of a step (`_elimination.eliminate_p`), written out in scalars."""

from __future__ import annotations

import numpy as np

from .._elimination import pivoted
from .builder import Builder
from .program import Value


class _Scalars:
    """The operations of an elimination as a builder writes them."""

    def __init__(self, b: Builder):
        self.number, self.select, self.neg, self.mul, self.sub = b.const, b.select, b.neg, b.mul, b.sub
        self._b = b

    def larger(self, x: Value, y: Value) -> Value:
        return self._b.compare("gt", self._b.unary("abs", x), self._b.unary("abs", y))

    def negative(self, x: Value) -> Value:
        return self._b.compare("lt", x, self._b.const(0.0))

    def reciprocal(self, x: Value) -> Value:
        return self._b.div(self._b.const(1.0), x)


def rule(b: Builder, params: dict, matrix: np.ndarray, rhs: np.ndarray) -> list[np.ndarray]:
    rows, sign = pivoted(_Scalars(b), matrix.tolist(), rhs.tolist())
    solution, of_determinant = np.empty(rhs.shape, object), np.empty((), object)
    for place in np.ndindex(rhs.shape):
        solution[place] = rows[place[0]][place[1]]
    of_determinant[()] = sign
    return [solution, of_determinant]
