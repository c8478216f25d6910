"""A recorded forward pass of any family, and what it was made of."""

from lexray.trace.run import trace_prompt
from lexray.trace.trace import ActiveFF, ExpertTrace, LayerTrace, Trace

__all__ = ["ActiveFF", "ExpertTrace", "LayerTrace", "Trace", "trace_prompt"]
