"""The web page that the gateway serves: jobs, curves, samples."""
