"""Products of matrices, cell by cell, without working any out."""

from __future__ import annotations

from functools import reduce

from services.grader.answers.nodes import Node
from services.grader.answers.values import Expression, Matrix, Number, Value

_MAX_CELLS = 36
_MAX_NODES = 500  # a product has each cell several times


def scaled(factor: Node, matrix: Matrix) -> Matrix | None:
    """A number times a matrix; None if a cell is no expression."""
    cells = [_tree(cell) for cell in matrix.cells]
    if not all(cells):
        return None
    products = (Expression.of(Node("*", (factor, cell))) for cell in cells if cell)
    return Matrix(tuple(products), matrix.num_rows, matrix.num_columns)


def multiplied(left: Matrix, right: Matrix) -> Matrix | None:
    """The product of two matrices; None if there is none, or it is large."""
    first, second = [_tree(c) for c in left.cells], [_tree(c) for c in right.cells]
    inner, width = left.num_columns, right.num_columns
    if inner != right.num_rows or len(first) + len(second) > _MAX_CELLS:
        return None
    if not all(first) or not all(second):
        return None
    if sum(1 for cell in (*first, *second) if cell for _ in cell.walk()) > _MAX_NODES:
        return None
    cells = list[Value]()
    for row in range(left.num_rows):
        for column in range(width):
            pairs = ((first[row * inner + k], second[k * width + column]) for k in range(inner))
            products = [Node("*", (a, b)) for a, b in pairs if a and b]
            cells.append(Expression.of(reduce(lambda a, b: Node("+", (a, b)), products)))
    return Matrix(tuple(cells), left.num_rows, width)


def determinant(matrix: Value) -> Expression | None:
    """Of two rows and columns; None for any other."""
    if not isinstance(matrix, Matrix) or (matrix.num_rows, matrix.num_columns) != (2, 2):
        return None
    a, b, c, d = map(_tree, matrix.cells)
    if not (a and b and c and d):
        return None
    return Expression.of(Node("-", (Node("*", (a, d)), Node("*", (b, c)))))


def _tree(value: Value) -> Node | None:
    return value.tree if isinstance(value, Number | Expression) else None
