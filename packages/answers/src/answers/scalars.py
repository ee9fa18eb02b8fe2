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
    if node.kind == "plusminus":
        return Node(sign, node.parts)
    return node


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
    if top is None or bottom is None or top.places or bottom.places:
        return None
    if not bottom.value:
        return None
    if tree.kind == "mixed":
        return Number(top.value + bottom.value)
    return Number(top.value / bottom.value)


def get_tree(value: Value) -> Node | None:
    if isinstance(value, Number | Expression):
        return value.tree
    return None


def get_letter(value: Value) -> str:
    tree = get_tree(value)
    if tree and tree.kind == "letter":
        return tree.letter
    return ""


def _get_trees(*matrices: Matrix) -> list[Node]:
    """Return the trees of all cells, or none if a cell has no tree."""
    trees = [get_tree(cell) for matrix in matrices for cell in matrix.cells]
    if None in trees:
        return []
    return [tree for tree in trees if tree]


def scale(factor: Node, matrix: Matrix) -> Matrix | None:
    trees = _get_trees(matrix)
    cells = tuple(Expression.from_tree(Node("*", (factor, tree))) for tree in trees)
    if cells:
        return Matrix(cells, matrix.num_rows, matrix.num_columns)
    return None


def multiply_matrices(first: Value, second: Value) -> Matrix | None:
    if not isinstance(first, Matrix) or not isinstance(second, Matrix):
        return None
    trees = _get_trees(first, second)
    num_nodes = sum(1 for tree in trees for _ in tree.walk())
    is_large = len(trees) > _MAX_CELLS or num_nodes > _MAX_NODES
    length = second.num_rows
    if is_large or first.num_columns != length or not trees:
        return None
    split = len(first.cells)
    rows = [trees[at : at + length] for at in range(0, split, length)]
    width = second.num_columns
    columns = [trees[split + at :: width] for at in range(width)]
    cells = [_multiply_vectors(row, column) for row in rows for column in columns]
    return _build_matrix(cells, first.num_rows, width)


def _build_matrix(trees: list[Node], num_rows: int, num_columns: int) -> Matrix | None:
    cells = tuple(map(Expression.from_tree, trees))
    return Matrix(cells, num_rows, num_columns) if cells else None


def _multiply_vectors(row: list[Node], column: list[Node]) -> Node:
    products = map(_multiply, row, column)
    return reduce(_add, products)


def _multiply(first: Node, second: Node) -> Node:
    return Node("*", (first, second))


def _add(first: Node, second: Node) -> Node:
    return Node("+", (first, second))


def determinant(matrix: Value) -> Expression | None:
    """Return the determinant of a matrix of two rows and two columns."""
    if not isinstance(matrix, Matrix):
        return None
    if matrix.num_rows != 2 or matrix.num_columns != 2:
        return None
    trees = _get_trees(matrix)
    if not trees:
        return None
    a, b, c, d = trees
    products = (_multiply(a, d), _multiply(b, c))
    return Expression.from_tree(Node("-", products))


def to_matrix(rows: list[list[Value]]) -> Matrix | None:
    widths = set(map(len, rows))
    if len(widths) == 1:
        return Matrix(tuple(chain(*rows)), len(rows), widths.pop())
    return None
