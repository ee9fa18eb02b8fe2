"""Calls of the policies that are trained and of models at rest, in OpenAI's shapes."""
