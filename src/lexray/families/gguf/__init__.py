"""GGUF's tensor names and metadata under Hugging Face's names."""
