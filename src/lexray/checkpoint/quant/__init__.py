"""Quantised weights under plain names: one module per format, read block by block as float32."""
