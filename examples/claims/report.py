"""The table of the claims, and a picture of the curves behind each."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from scipy import stats

from examples.claims.registered import CLAIMS, TRIALS, Claim, Trial
from examples.claims.training import Histories

mpl.use("Agg")
from matplotlib import pyplot as plt

HERE = Path(__file__).parent
PAGE = HERE / "README.md"
RESULTS = HERE / "results.jsonl"
LEVEL = 0.05


def compute_differences(trial: Trial, histories: Histories) -> dict[str, list[float]]:
    """Return the sum that each claim predicts to be positive, per seed."""
    return {claim.name: _difference(claim, histories) for claim in trial.claims}


def _difference(claim: Claim, histories: Histories) -> list[float]:
    means = [
        sign * histories[arm][metric][first:last].mean(0)
        for sign, arm, metric, (first, last) in claim.terms
    ]
    return [round(float(value), 5) for value in np.sum(means, axis=0)]


def holm(p_values: Sequence[float]) -> list[float]:
    """Correct p-values for their number: Holm (1979).

    >>> [round(p, 3) for p in holm([0.01, 0.04, 0.03])]
    [0.03, 0.06, 0.06]
    """
    corrected = [0.0] * len(p_values)
    largest = 0.0
    for rank, index in enumerate(np.argsort(p_values)):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[index]))
        corrected[index] = largest
    return corrected


def verdicts(differences: Mapping[str, Sequence[float]]) -> dict[str, tuple[float, str]]:
    """Return the corrected p-value of Student's paired test and the verdict of each claim."""
    tests: list[Any] = [stats.ttest_1samp(values, 0.0) for values in differences.values()]
    p_values = holm([test[1] for test in tests])
    return {
        name: (p, _verdict(float(np.mean(values)), p))
        for (name, values), p in zip(differences.items(), p_values, strict=True)
    }


def _verdict(mean: float, p: float) -> str:
    if p > LEVEL:
        return "not shown"
    return "**held**" if mean > 0 else "**reversed**"


def table(result: Mapping[str, Any]) -> str:
    """Return a row per claim in Markdown: the mean over seeds with its own 95 % interval."""
    differences = result["differences"]
    first = result["first_seed"]
    rows = [
        f"{result['date'][:10]}, registration `{result['registration']}`, seeds from {first} on, "
        f"{result['seconds'] // 60} minutes:",
        "",
        "| claim | predicted above 0 | measured | seeds | p, by Holm | verdict |",
        "|---|---|---|---|---|---|",
    ]
    for name, (p, verdict) in verdicts(differences).items():
        claim = CLAIMS[name]
        values = np.array(differences[name])
        half = stats.t.ppf(1 - LEVEL / 2, len(values) - 1) * stats.sem(values)
        measured = f"{values.mean():+.3f} ± {half:.3f}"
        says = f"{claim.says} ({claim.source.split(',')[0]})"
        cells = says, _describe(claim), measured, f"{len(values)}", _short(p), verdict
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows)


def _describe(claim: Claim) -> str:
    """Return the sum that a claim predicts, as ``papo's accuracy 20-40 − orm's accuracy 20-40``."""
    parts = [
        f"{'+' if sign > 0 else '−'} {arm}'s {metric} {first}–{last}"
        for sign, arm, metric, (first, last) in claim.terms
    ]
    return " ".join(parts).removeprefix("+ ")


def _short(p: float) -> str:
    return "< 0.001" if p < 0.001 else f"{p:.3f}"


def results() -> list[dict[str, Any]]:
    """Return all recorded runs, the newest last."""
    return [json.loads(line) for line in RESULTS.read_text().splitlines()]


def write_table(result: Mapping[str, Any]) -> None:
    """Replace the README's table."""
    between = f"<!-- table -->\n{table(result)}\n<!-- /table -->"
    text = re.sub(r"(?s)<!-- table -->.*<!-- /table -->", lambda _: between, PAGE.read_text())
    PAGE.write_text(text)


def draw(name: str, histories: Histories) -> None:
    """Draw a panel per claim: its arms over the steps, as means over seeds ± standard deviation."""
    claims = TRIALS[name].claims
    columns = min(3, len(claims))
    lines = -(-len(claims) // columns)
    size = (4 * columns, 3 * lines)
    figure, axes = plt.subplots(lines, columns, figsize=size, layout="constrained", squeeze=False)
    for axis in axes.flat[len(claims) :]:
        axis.set_visible(False)
    for axis, claim in zip(axes.flat, claims, strict=False):
        for arm, metric in dict.fromkeys((arm, metric) for _, arm, metric, _ in claim.terms):
            curve = histories[arm][metric]
            mean = curve.mean(1)
            spread = curve.std(1)
            axis.plot(mean, linewidth=1.5, label=f"{arm}: {metric}")
            axis.fill_between(range(len(mean)), mean - spread, mean + spread, alpha=0.2)
        for _, _, _, steps in claim.terms:
            axis.axvspan(*steps, color="black", alpha=0.04)
        axis.set_title(claim.name, fontsize=9, loc="left")
        axis.spines[["top", "right"]].set_visible(False)
        axis.tick_params(labelsize=7)
        axis.legend(frameon=False, fontsize=7)
    (HERE / "pictures").mkdir(exist_ok=True)
    figure.savefig(HERE / "pictures" / f"{name.replace(' ', '-').replace(',', '')}.png", dpi=70)
    plt.close(figure)
