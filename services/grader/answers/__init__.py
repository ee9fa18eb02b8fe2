r"""Answers read as what they are: numbers, words, quantities, formulas, tuples, sets. Pure."""
