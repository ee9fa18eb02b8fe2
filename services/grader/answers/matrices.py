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
    """Of a small square matrix, by its first row."""
    if not isinstance(matrix, Matrix) or not matrix.num_rows == matrix.num_columns <= 3:
        return None
    cells = [cell for cell in map(_tree, matrix.cells) if cell]
    width = matrix.num_rows
    if len(cells) < width * width:
        return None
    rows = [cells[at : at + width] for at in range(0, width**2, width)]
    return Expression.of(_determinant(rows))


def _determinant(rows: list[list[Node]]) -> Node:
    if len(rows) == 1:
        return rows[0][0]
    minors = ([row[:at] + row[at + 1 :] for row in rows[1:]] for at in range(len(rows)))
    terms = [
        Node("*", (cell, _determinant(minor))) for cell, minor in zip(rows[0], minors, strict=True)
    ]
    signed = [Node("negative", (term,)) if at % 2 else term for at, term in enumerate(terms)]
    return reduce(lambda a, b: Node("+", (a, b)), signed)


def _tree(value: Value) -> Node | None:
    return value.tree if isinstance(value, Number | Expression) else None
