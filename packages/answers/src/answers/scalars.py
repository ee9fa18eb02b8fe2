"""Sides without marks as one number, expression or matrix."""

from __future__ import annotations

from functools import reduce
from itertools import chain

from answers.grammar import read_tree
from answers.nodes import Node, Unreadable, rebuild
from answers.tokens import Side, to_latex
from answers.values import Expression, Matrix, Number, Set, Value

_MAX_CELLS = 36
_MAX_NODES = 500  # a product of matrices has each cell several times


def read_scalar(side: Side) -> Value:
    """Read a number, an expression, or the two values of an expression with ±."""
    try:
        tree = read_tree(side, as_answer=True)
    except Unreadable:
        return Expression(None, to_latex(side))
    num_signs = sum(node.kind == "plusminus" for node in tree.walk())
    if num_signs == 1:
        return _split_plus_minus(tree)
    if num_signs > 1:
        return Expression(None, to_latex(side))
    return _to_number(tree) or Expression(tree, to_latex(side))


def _split_plus_minus(tree: Node) -> Set:
    values = list[Value]()
    for sign in "+-":
        signed = rebuild(tree, lambda node, s=sign: _choose_sign(node, s))
        values.append(_to_number(signed) or Expression.from_tree(signed))
    return Set(tuple(values), "pm")


def _choose_sign(node: Node, sign: str) -> Node:
    return Node(sign, node.parts) if node.kind == "plusminus" else node


def read_remainder(side: Side) -> Number | None:
    r"""Read ``17 \bmod 5`` as 2."""
    if len(side) != 3 or side[1].text != r"\bmod":
        return None
    number = read_scalar(side[:1])
    modulus = read_scalar(side[2:])
    if isinstance(number, Number) and isinstance(modulus, Number) and modulus.value:
        return Number(number.value % modulus.value)
    return None


def _to_number(tree: Node) -> Number | None:
    if tree.kind == "number":
        return Number(tree.number, tree.places or None)
    if tree.kind == "negative":
        number = _to_number(tree.parts[0])
        return number and Number(-number.value, number.places)
    if tree.kind == "grouped":
        return _to_number(tree.parts[0])
    if tree.kind not in ("fraction", "/", "mixed"):
        return None
    top, bottom = map(_to_number, tree.parts)
    if top is None or bottom is None or not bottom.value or top.places or bottom.places:
        return None
    if tree.kind == "mixed":
        return Number(top.value + bottom.value)
    return Number(top.value / bottom.value)


def get_tree(value: Value) -> Node | None:
    return value.tree if isinstance(value, Number | Expression) else None


def get_letter(value: Value) -> str:
    tree = get_tree(value)
    return tree.letter if tree and tree.kind == "letter" else ""


def _get_trees(*matrices: Matrix) -> list[Node]:
    """Return the trees of all cells, or none if a cell has no tree."""
    trees = [get_tree(cell) for matrix in matrices for cell in matrix.cells]
    return [] if None in trees else [tree for tree in trees if tree]


def scale(factor: Node, matrix: Matrix) -> Matrix | None:
    trees = _get_trees(matrix)
    cells = tuple(Expression.from_tree(Node("*", (factor, tree))) for tree in trees)
    return Matrix(cells, matrix.num_rows, matrix.num_columns) if cells else None


def multiply_matrices(left: Value, right: Value) -> Matrix | None:
    if not (isinstance(left, Matrix) and isinstance(right, Matrix)):
        return None
    trees = _get_trees(left, right)
    num_nodes = sum(1 for tree in trees for _ in tree.walk())
    is_large = len(trees) > _MAX_CELLS or num_nodes > _MAX_NODES
    length = right.num_rows
    if is_large or left.num_columns != length or not trees:
        return None
    split = len(left.cells)
    rows = [trees[at : at + length] for at in range(0, split, length)]
    columns = [trees[split + at :: right.num_columns] for at in range(right.num_columns)]
    cells = [_multiply_vectors(row, column) for row in rows for column in columns]
    return Matrix(tuple(cells), left.num_rows, right.num_columns)


def _multiply_vectors(row: list[Node], column: list[Node]) -> Expression:
    products = [Node("*", pair) for pair in zip(row, column, strict=False)]
    return Expression.from_tree(reduce(_add, products))


def _add(first: Node, second: Node) -> Node:
    return Node("+", (first, second))


def determinant(matrix: Value) -> Expression | None:
    """Return the determinant of a matrix of two rows and two columns."""
    if not isinstance(matrix, Matrix) or (matrix.num_rows, matrix.num_columns) != (2, 2):
        return None
    trees = _get_trees(matrix)
    if not trees:
        return None
    a, b, c, d = trees
    return Expression.from_tree(Node("-", (Node("*", (a, d)), Node("*", (b, c)))))


def to_matrix(rows: list[list[Value]]) -> Matrix | None:
    widths = {len(row) for row in rows}
    return Matrix(tuple(chain(*rows)), len(rows), widths.pop()) if len(widths) == 1 else None
