"""The page's own arithmetic, run by the browser that will run it."""

import tomllib
from typing import Any

import pytest
from playwright.sync_api import Page

pytestmark = pytest.mark.redis


@pytest.fixture
def call(page: Page) -> Any:
    """Calls a function of a module of the page."""
    page.goto("/")

    def call(module: str, function: str, *arguments: Any) -> Any:
        script = f"async (values) => (await import('/static/js/{module}.js')).{function}(...values)"
        return page.evaluate(script, list(arguments))

    return call


def test_smoothing_begins_at_the_first_value_and_passes_over_gaps(call: Any) -> None:
    assert call(
        "data/series",
        "smoothed",
        [2, None, 4],
        0,
    ) == [2, None, 4]
    first, gap, second = call(
        "data/series",
        "smoothed",
        [2, None, 4],
        0.5,
    )
    assert (first, gap) == (2, None)
    assert second == pytest.approx((0.5 * 0.5 * 2 + 0.5 * 4) / 0.75)


def test_a_text_is_cut_at_tokens_and_marks_in_characters_beyond_the_first_plane(
    call: Any,
) -> None:
    marks = [
        {"start": 1, "end": 4, "note": "outer"},
        {"start": 2, "end": 3, "note": "inner"},
    ]
    runs = call("samples/pieces", "pieces", ["😀a", "bcd", "", "e"], marks)
    for run, (note, parts) in zip(
        runs,
        [
            (None, [(0, "😀")]),
            ("outer", [(0, "a")]),
            ("inner", [(1, "b")]),
            ("outer", [(1, "c")]),
            (None, [(1, "d"), (2, ""), (3, "e")]),
        ],
        strict=True,
    ):
        assert (run["mark"] or {}).get("note") == note
        assert [(part["token"], part["text"]) for part in run["parts"]] == parts


def test_few_far_values_do_not_bleach_a_scale(page: Page) -> None:
    page.goto("/")
    script = """async (token_advantages) => {
        const { SHADINGS, levelClass, scaleEnd } = await import('/static/js/samples/shading.js');
        const kind = SHADINGS.advantage;
        const end = scaleEnd([{ token_advantages }], kind);
        return [end, ...[50, -25, 0, null, 9000].map((value) => levelClass(value, end, kind))];
    }"""
    levels = page.evaluate(script, [*range(-50, 51), None, 9000])
    assert levels == [50, "up8", "down4", "", "", "up8"]


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "–"),
        (0, "0"),
        (0.12345, "0.123"),
        (-2.5, "-2.500"),
        (23.456, "23.46"),
        (12345.6, "12,346"),
        (0.00012, "1.2e-4"),
        (2.5e12, "2.5e12"),
    ],
)
def test_a_number_has_about_three_digits(call: Any, value: float | None, shown: str) -> None:
    assert call("shell/format", "number", value) == shown


def test_what_was_measured_on_no_token_is_a_gap_in_its_curve(page: Page) -> None:
    page.goto("/")
    script = """async (steps) => {
        const { History } = await import('/static/js/data/history.js');
        const history = new History();
        steps.forEach((data) => history.absorb({ type: 'metrics', data }));
        return history.curve('parity_max');
    }"""
    steps = [
        {"step": 1, "parity_max": 2e-6, "parity_tokens": 70},
        {"step": 2, "parity_tokens": 0},
    ]
    assert page.evaluate(script, steps) == [[1, 2], [2e-6, None]]


def test_a_recipe_is_toml_that_python_reads_and_its_defaults_are_marked(call: Any) -> None:
    recipe: dict[str, Any] = {
        "name": 'a "b"\n',
        "none": None,
        "training": {"steps": 3, "rate": 1e-7},
    }
    recipe["reward"] = {
        "outcome": [
            {
                "verifier": "x",
                "of a": {"b": [True, 2.5]},
            }
        ]
    }
    text = call(
        "jobs/toml",
        "toml",
        recipe,
        {"name": "", "training": {"steps": 3}, "reward": {}},
    )
    del recipe["none"]
    marked = [line.split(" = ")[0] for line in text.splitlines() if line.endswith("# default")]
    assert tomllib.loads(text) == recipe
    assert marked == ["rate", "outcome"]
