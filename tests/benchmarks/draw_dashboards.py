"""Pictures of the dashboards, without Grafana: ``python -m tests.benchmarks.draw_dashboards``.

Starts a stack and a Prometheus, trains with the demo's recipe, and draws what every panel would ask
into ``runs/dashboards/NAME.png``; with ``--prometheus URL --minutes 60`` it draws what another
Prometheus holds. The grid, the units, the legends and the limits are those of the JSON; the looks
are matplotlib's.
"""

from __future__ import annotations

import argparse
import math
import re
import sys
import tempfile
import textwrap
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter
from protocol.recipe import load_recipe

from tests.dashboards import FILES, Json, Prometheus, Query, dashboard, marks, queries
from tests.stack.conftest import ROOT, start

COLUMN, ROW = 0.75, 0.42  # inches of a cell of the grid
_COLOURS = {"text": "grey", "dark-green": "darkgreen"}  # Grafana's that have other names here
_PLAIN: dict[str, Any] = {"linewidth": 1.4}
_FAINT: dict[str, Any] = {"linewidth": 0.8, "linestyle": "--"}
MOST_LEGENDS = 8


@dataclass(frozen=True)
class Line:
    """A series, and what the legend calls it."""

    labels: dict[str, str]
    name: str
    xs: list[float]
    ys: list[float]


@dataclass(frozen=True)
class Span:
    """What to draw, and when it was."""

    prometheus: Prometheus
    since: float
    until: float

    def lines(self, query: Query) -> list[Line]:
        """The series of a query; the time in minutes since the beginning."""
        return [
            Line(
                series["metric"],
                query.name_of(series["metric"]),
                [(at - self.since) / 60 for at, _ in series["values"]],
                [float(value) for _, value in series["values"]],
            )
            for series in self.prometheus.answer(query, self.since, self.until)
        ]


def main(arguments: Sequence[str]) -> int:
    """Draw every dashboard; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prometheus", help="the URL of a Prometheus; without it, train")
    parser.add_argument("--minutes", type=float, default=60, help="until now")
    parser.add_argument("--steps", type=int, help="of the training, if not the recipe's")
    parser.add_argument("--out", type=Path, default=Path("runs/dashboards"))
    chosen = parser.parse_args(arguments)
    chosen.out.mkdir(parents=True, exist_ok=True)
    if chosen.prometheus:
        draw_all(Span(Prometheus(chosen.prometheus), *_ago(chosen.minutes)), chosen.out)
    else:
        with trained(chosen.steps, chosen.out / "prometheus") as span:
            draw_all(span, chosen.out)
    return 0


@contextmanager
def trained(steps: int | None, kept: Path) -> Iterator[Span]:
    """A stack that has trained with the demo's recipe, seen by a Prometheus whose data is kept."""
    recipe = load_recipe(ROOT / "recipes/demo.toml")
    if steps:
        training = recipe.training.model_copy(update={"steps": steps})
        recipe = recipe.model_copy(update={"training": training})
    with tempfile.TemporaryDirectory() as folder:
        stack = start(Path(folder) / "stack")
        try:
            stack.wait_until_up()
            since = time.time()
            prometheus = Prometheus.start(kept, stack.metrics())
            with stack.client() as weir:
                job = weir.submit_recipe(recipe, model=str(ROOT / recipe.model.path))["id"]
            stack.wait_for_end(job, timeout_s=3600)
            time.sleep(10)  # the end is to be seen, too
            yield Span(prometheus, since, time.time())
            prometheus.stop()
        finally:
            stack.supervisor.terminate()
            stack.supervisor.wait(60)


def draw_all(span: Span, folder: Path) -> None:
    """Draw a picture per dashboard."""
    for file in FILES:
        content = dashboard(file)
        height = max(p["gridPos"]["y"] + p["gridPos"]["h"] for p in content["panels"])
        figure = plt.figure(figsize=(24 * COLUMN, height * ROW))
        for panel in content["panels"]:
            _draw_panel(figure, panel, height, span, content)
        path = folder / f"{file.stem}.png"
        figure.savefig(path, dpi=90)
        plt.close(figure)
        print(path)


def _draw_panel(figure: Any, panel: Json, height: int, span: Span, content: Json) -> None:
    at = panel["gridPos"]
    left, right = at["x"] / 24, (at["x"] + at["w"]) / 24
    top, bottom = 1 - at["y"] / height, 1 - (at["y"] + at["h"]) / height
    figure.text(left + 0.004, top - 0.25 / (height * ROW), panel["title"], weight="bold", size=9)
    if panel["type"] == "row":
        return
    margins = {"timeseries": (0.6, 0.95), "state-timeline": (2.2, 0.3)}
    inner_left, inner_bottom = margins.get(panel["type"], (0.1, 0.1))
    axes: Axes = figure.add_axes(
        (
            left + inner_left / (24 * COLUMN),
            bottom + inner_bottom / (height * ROW),
            right - left - (inner_left + 0.15) / (24 * COLUMN),
            top - bottom - (inner_bottom + 0.4) / (height * ROW),
        )
    )
    if panel["type"] == "text":
        _draw_text(axes, panel)
    elif panel["type"] == "table":
        _draw_table(axes, panel, span)
    else:
        lines = [line for query in queries(panel) for line in span.lines(query)]
        _DRAW[panel["type"]](axes, panel, lines)
    if panel["type"] in {"timeseries", "state-timeline"}:
        _finish_time_axis(axes, span, content)


def _draw_lines(axes: Axes, panel: Json, lines: list[Line]) -> None:
    defaults = panel["fieldConfig"]["defaults"]
    custom, unit = defaults.get("custom", {}), defaults["unit"]
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: shown(value, unit)))
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    finite = [line for line in lines if any(map(math.isfinite, line.ys))]
    if not finite:
        return _say_no_data(axes)
    if custom.get("stacking", {}).get("mode") == "normal":
        _stack(axes, finite)
    else:
        stairs = custom.get("lineInterpolation") == "stepAfter"
        for line in finite:
            looks = _FAINT if _is_faint(line, panel) else _PLAIN
            style = "steps-post" if stairs else "default"
            axes.plot(line.xs, line.ys, drawstyle=style, label=line.name, **looks)
    _limits(axes, defaults)
    axes.set_ylim(defaults.get("min"), defaults.get("max"))
    columns = 1 if max(len(line.name) for line in finite) > 30 else 3
    handles, labels = axes.get_legend_handles_labels()
    axes.legend(
        handles[:MOST_LEGENDS], labels[:MOST_LEGENDS], fontsize=6, ncols=columns, frameon=False,
        loc="upper center", bbox_to_anchor=(0.5, -0.12), columnspacing=1, labelspacing=0.2,
    )  # fmt: skip


def _is_faint(line: Line, panel: Json) -> bool:
    patterns = [each["matcher"]["options"] for each in panel["fieldConfig"]["overrides"]]
    return any(re.search(pattern.strip("/"), line.name) for pattern in patterns)


def _stack(axes: Axes, lines: list[Line]) -> None:
    times = sorted({x for line in lines for x in line.xs})
    heights = []
    for line in lines:
        known = dict(zip(line.xs, line.ys, strict=True))
        values = [known.get(x, 0.0) for x in times]
        heights.append([value if math.isfinite(value) else 0.0 for value in values])
    axes.stackplot(times, heights, labels=[line.name for line in lines], alpha=0.7)


def _limits(axes: Axes, defaults: Json) -> None:
    if defaults.get("custom", {}).get("thresholdsStyle"):
        for step in defaults["thresholds"]["steps"]:
            if step["value"] is not None:
                axes.axhline(step["value"], color=step["color"], linestyle=":", linewidth=1)


def _draw_numbers(axes: Axes, panel: Json, lines: list[Line]) -> None:
    axes.axis("off")
    unit = panel["fieldConfig"]["defaults"]["unit"]
    for place, line in enumerate(lines):
        x = (place + 0.5) / len(lines)
        axes.text(x, 0.55, shown(line.ys[-1], unit), size=20, ha="center", va="center")
        axes.text(x, 0.1, line.name, size=8, ha="center", color="grey")
    if not lines:
        _say_no_data(axes)


def _draw_states(axes: Axes, panel: Json, lines: list[Line]) -> None:
    (mapping,) = panel["fieldConfig"]["defaults"]["mappings"]
    for place, line in enumerate(lines):
        for since, until, value in zip(line.xs, [*line.xs[1:], line.xs[-1]], line.ys, strict=True):
            known = mapping["options"].get(f"{value:g}", {"color": "white"})["color"]
            colour = _COLOURS.get(known, known)
            axes.barh(place, until - since, 0.7, left=since, color=colour)
    axes.set_yticks(range(len(lines)), [line.name for line in lines])
    if not lines:
        _say_no_data(axes)


def _draw_table(axes: Axes, panel: Json, span: Span) -> None:
    """Rows that agree in the labels of the first query, as Grafana merges them."""
    axes.axis("off")
    organize = panel["transformations"][1]["options"]
    units = {
        override["matcher"]["options"]: override["properties"][0]["value"]
        for override in panel["fieldConfig"]["overrides"]
    }
    rows: dict[str, Json] = {}
    for target, query in zip(panel["targets"], queries(panel), strict=True):
        name = organize["renameByName"].get(f"Value #{target['refId']}")
        for line in span.lines(query):
            row = rows.setdefault(line.labels["job"], {})
            row |= line.labels
            if name:
                row[name] = shown(line.ys[-1], units[name])
    order = [name for name in organize["indexByName"] if name]
    cells = [[row.get(name, "") for name in order] for row in rows.values()]
    if not cells:
        return _say_no_data(axes)
    table = axes.table(cells, colLabels=order, loc="upper center", cellLoc="left")
    table.auto_set_font_size(False)
    table.set_fontsize(7)


def _draw_text(axes: Axes, panel: Json) -> None:
    axes.axis("off")
    lines = panel["options"]["content"].splitlines()
    wrapped = "\n".join("\n".join(textwrap.wrap(line, 180)) for line in lines)
    axes.text(0, 1, wrapped, size=8, va="top")


def _say_no_data(axes: Axes) -> None:
    axes.text(0.5, 0.5, "no data", transform=axes.transAxes, ha="center", color="crimson")


def _finish_time_axis(axes: Axes, span: Span, content: Json) -> None:
    axes.set_xlim(0, (span.until - span.since) / 60)
    axes.xaxis.set_major_formatter("{x:g} min")
    axes.tick_params(labelsize=7)
    colours = {a["name"]: a["iconColor"] for a in content["annotations"]["list"] if a["enable"]}
    for name, query in marks(content):
        if name in colours:
            for line in span.lines(query):
                for since, until in _regions(line):
                    axes.axvspan(since, until, color=colours[name], alpha=0.15)


def _regions(line: Line) -> Iterator[tuple[float, float]]:
    """The times in which a value is above 0."""
    began: float | None = None
    for x, y in zip(line.xs, line.ys, strict=True):
        if y > 0:
            began = x if began is None else began
        elif began is not None:
            yield began, x
            began = None


def shown(value: float, unit: str) -> str:
    """A number with its unit, as Grafana writes it."""
    if math.isnan(value):
        return "NaN"
    if unit == "percentunit":
        return f"{value:.1%}"
    if unit == "s":
        return f"{value * 1000:.3g} ms" if abs(value) < 1 else f"{value:.3g} s"
    if unit == "bytes":
        return f"{value / 2**20:,.0f} MiB"
    if unit == "short" and abs(value) >= 1000:
        return f"{value / 1000:.3g} K"
    return f"{value:.4g}"


def _ago(minutes: float) -> tuple[float, float]:
    return time.time() - minutes * 60, time.time()


_DRAW = {"timeseries": _draw_lines, "stat": _draw_numbers, "state-timeline": _draw_states}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
