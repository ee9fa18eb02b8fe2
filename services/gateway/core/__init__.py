"""Jobs, files, models, calls and samples, without a word of HTTP clients."""
