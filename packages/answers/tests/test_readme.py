"""The examples of the README are true."""

import re
from pathlib import Path
from typing import Any

README = (Path(__file__).parents[1] / "README.md").read_text("utf-8")
EXAMPLES, REWARD = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


def test_the_examples_have_the_values_in_their_comments() -> None:
    names: dict[str, Any] = {}
    exec(EXAMPLES, names)
    examples = re.findall(r"(?m)^(is_equal\(.*\))  # (True|False)", EXAMPLES)
    assert len(examples) == 4
    for call, value in examples:
        outcome = eval(call, names)
        assert str(outcome) == value, call


def test_the_reward_function_rewards_right_answers() -> None:
    names: dict[str, Any] = {}
    exec(REWARD, names)
    completions = [[{"content": r"\boxed{4}"}], [{"content": "five"}]]
    rewards = names["correctness_reward"](completions, answer=["4", "4"], problem=["?", "?"])
    assert rewards == [1, 0]
