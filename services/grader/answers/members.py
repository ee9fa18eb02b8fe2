"""The members of a set or list."""

from __future__ import annotations

from services.grader.answers.shapes import THOUSANDS, Kind, Shape, shape_of


def beside(gold: Shape, answer: Shape) -> Shape:
    """``100,200`` is a number, but two of them where the gold is a set of two."""
    is_number = answer.kind is Kind.SCALAR and THOUSANDS.fullmatch(answer.parts[0])
    is_list = is_number and len(gold.parts) > 1
    return Shape(Kind.SET, tuple(answer.parts[0].split(","))) if is_list else answer


def members(shape: Shape, text: str) -> tuple[str, ...]:
    r"""The members of a set, where a ``\pm`` counts twice; anything else is its own member."""
    if shape.kind is not Kind.SET:
        return (text,)
    found: list[str] = []
    for part in shape.parts:
        inner = shape_of(part) if r"\pm" in part or r"\mp" in part else None
        found += inner.parts if inner and inner.kind is Kind.SET else (part,)
    return tuple(found)
