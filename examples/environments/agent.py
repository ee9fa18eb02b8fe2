"""An agent that knows nothing of Weir: it asks a model, and judges the answer itself."""

import json
import os
import re

from openai import OpenAI

task = json.loads(os.environ["WEIR_TASK"])
model = OpenAI()  # reads OPENAI_BASE_URL and OPENAI_API_KEY
messages = [{"role": "user", "content": task["prompt"]}]
reply = model.chat.completions.create(model=os.environ["OPENAI_MODEL"], messages=messages)
answer = re.findall(r"boxed\{(\d+)\}", reply.choices[0].message.content)
print(json.dumps({"reward": float(answer[-1:] == [task["answer"]])}))
