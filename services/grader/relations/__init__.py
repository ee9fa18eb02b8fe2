"""Equations and inequalities of a solution, in LaTeX or plain, and whether they are right.

`tokens` cuts the text, `clauses` finds the relations, `reading` reads a side into a tree, `values`
computes it, `judging` puts them together. Runs in the pool; `mpmath` computes, no text is executed.
"""
