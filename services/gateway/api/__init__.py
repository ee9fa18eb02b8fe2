"""The edge: routes, bodies, and the words of OpenAI and Tinker."""
