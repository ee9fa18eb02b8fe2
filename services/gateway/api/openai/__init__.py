"""OpenAI's shapes: bodies, graders, jobs as its SDK reads them."""
