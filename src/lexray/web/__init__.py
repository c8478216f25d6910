"""The local app: a model as pages in the browser."""
