"""Graders of OpenAI's API."""

import tomllib
from typing import Any

GRADERS: dict[str, Any] = tomllib.loads("""
[exact]
type = "string_check"
name = "exact"
input = "{{sample.output_text}}"
reference = "{{item.answer}}"
operation = "eq"

[alike]
type = "text_similarity"
name = "alike"
input = "{{sample.output_text}}"
reference = "{{item.solution}}"
evaluation_metric = "rouge_l"

[judged]
type = "score_model"
name = "judged"
model = "judge"
input = [{ role = "user", content = "{{item.prompt}}\\n\\n{{sample.output_text}}" }]

[labelled]
type = "label_model"
name = "labelled"
model = "judge"
input = [{ role = "user", content = "{{sample.output_text}}" }]
labels = ["good", "bad"]
passing_labels = ["good"]

[source]
type = "python"
name = "own"
source = "def grade(sample, item):\\n    return 1.0"
image_tag = "2025-05-08"
""")
EXACT, ALIKE, JUDGED, LABELLED, SOURCE = GRADERS.values()
