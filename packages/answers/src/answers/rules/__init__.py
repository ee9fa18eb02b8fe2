"""The rules by which values are compared; the first that fits decides."""

from answers.comparison import Rule
from answers.rules.lists import compare_ratios, compare_sets, compare_tuples, compare_unions
from answers.rules.quantities import compare_quantities
from answers.rules.relations import (
    compare_approximations,
    compare_assignments,
    compare_relations,
)
from answers.rules.scalars import (
    compare_choices,
    compare_expressions,
    compare_numbers,
    compare_words,
)

RULES: list[Rule] = [
    compare_numbers,
    compare_approximations,
    compare_ratios,
    compare_choices,
    compare_assignments,
    compare_relations,
    compare_sets,
    compare_unions,
    compare_tuples,
    compare_quantities,
    compare_words,
    compare_expressions,
]
