"""Equations and inequalities of a solution, in LaTeX or plain, and whether they are right.

`notation` says how numbers may be written, `tokens` cuts the text, `clauses` finds the chains and
`chains` their relations, `surroundings` and `sentences` what may change them, `reading` makes a
tree of `nodes` of a side, `values` and `reals` compute it, `identities` tries letters, `sameness`
tells what says nothing, `effort` how much work there may be, `judging` puts all together.
Runs in the pool. None of the text is ever executed.
"""
