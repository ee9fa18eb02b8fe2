"""The judge: a model behind an OpenAI-compatible server that grades by a rubric."""
