"""``python -m tests.language``: names and sentences are plain English, by `docs/glossary.md`.

In a room of `DONE` each fault is printed and fails; of the others only their number is printed.
"""

import ast
import io
import re
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from tests.architecture.project import DOCUMENTS, FOLDERS, ROOT, name_of

# The rooms that are rewritten.
DONE = frozenset(
    {
        "deploy",
        "services/chassis",
        "services/data",
        "services/environment",
        "services/grader",
        "services/rollout",
        "weir",
    }
)
MAX_TOKENS_PER_LINE = 9.0
NO_NOUN = re.compile(
    r"_*(?:told|given|found|known|asked|made|kept|seen|said|sought|held|shown|left|taken|wanted"
    r"|there|own|others|each|one|both|some|more|most|here|rest)_*\Z"
)
NO_VERB = re.compile(
    r"_*(?:of|in|at|by|with|without|under|around|until|behind|before|beyond|within|out)_"
    r"|_*(?:what|who|which|where|how|why)_|.*_(?:of|in|at|by|to|for|from|with|on)\Z"
)
HEADLESS = re.compile(
    r"\b[Ww]hat (?:is|are|has|have|was|were|it|they|a|the|others|one|can|cannot|comes|came|goes"
    r"|went|no|does|did)\b(?![^.\n]{0,80}\?)"
)
NO_CODE = {tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.COMMENT}
Fault = tuple[int, str]


def name_faults(node: ast.AST) -> Iterator[Fault]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and NO_VERB.match(node.name):
        yield node.lineno, f"{node.name}: a function is a verb with its object"
    if isinstance(node, ast.arg) and NO_NOUN.match(node.arg):
        yield node.lineno, f"{node.arg}: a parameter is a noun"
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and NO_NOUN.match(node.id):
        yield node.lineno, f"{node.id}: a variable is a noun"
    if isinstance(node, ast.Assign) and isinstance(node.value, ast.Tuple):
        names, values = node.targets[0], node.value
        if isinstance(names, ast.Tuple) and {*map(ast.unparse, names.elts)}.isdisjoint(
            map(ast.unparse, values.elts)
        ):
            yield node.lineno, f"{ast.unparse(node)}: one statement a line"


def faults(path: Path) -> Iterator[Fault]:
    text = path.read_text(encoding="utf-8")
    for match in HEADLESS.finditer(text):
        yield text.count("\n", 0, match.start()) + 1, f"{match[0]!r}: name the thing"
    if path.suffix == ".py":
        for node in ast.walk(ast.parse(text)):
            yield from name_faults(node)
        tokens = list(tokenize.generate_tokens(io.StringIO(text).readline))
        code = [each for each in tokens if each.type not in NO_CODE and '"""' not in each.string]
        num_lines = len({each.start[0] for each in code})
        if len(code) > MAX_TOKENS_PER_LINE * num_lines:
            yield 1, f"{len(code) / num_lines:.1f} tokens a line, more than {MAX_TOKENS_PER_LINE:g}"


if __name__ == "__main__":
    modules = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]
    numbers = Counter[str]()
    for path in (*modules, *DOCUMENTS):
        room = "/".join(name_of(path).split("/")[: 2 if "services/" in name_of(path) else 1])
        for line, problem in faults(path):
            numbers[room] += 1
            if room in DONE:
                print(f"{name_of(path)}:{line}: {problem}")
    print("Faults of language:", ", ".join(f"{room} {n}" for room, n in numbers.items()))
    sys.exit(any(room in DONE for room in numbers))
