"""The members of a set or list, the coordinates of a vector."""

from __future__ import annotations

from services.grader.answers.shapes import Kind, Shape, shape_of


def members(shape: Shape, text: str) -> tuple[str, ...]:
    r"""The members of a set, where a ``\pm`` counts twice; anything else is its own member."""
    if shape.kind is not Kind.SET:
        return (text,)
    found: list[str] = []
    for part in shape.parts:
        inner = shape_of(part) if r"\pm" in part or r"\mp" in part else None
        found += inner.parts if inner and inner.kind is Kind.SET else (part,)
    return tuple(found)


def vector(shape: Shape) -> Shape:
    """A vector, in a row or a column, is the tuple of its coordinates."""
    is_vector = shape.kind is Kind.MATRIX and "1" in shape.marks.split("x")
    return Shape(Kind.TUPLE, shape.parts, "()") if is_vector else shape
