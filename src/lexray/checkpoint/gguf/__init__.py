"""GGUF files: header, tensors, quantised blocks."""
