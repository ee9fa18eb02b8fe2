"""An agent that knows nothing of Weir: it asks a model, and judges the answer itself."""

import json
import os
import re

from openai import OpenAI

task = json.loads(os.environ["WEIR_TASK"])
reply = OpenAI().chat.completions.create(  # reads OPENAI_BASE_URL and OPENAI_API_KEY
    model=os.environ["OPENAI_MODEL"], messages=[{"role": "user", "content": task["prompt"]}]
)
answers = re.findall(r"boxed\{(\d+)\}", reply.choices[0].message.content or "")
print(float(answers[-1:] == [task["answer"]]))
