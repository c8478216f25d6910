"""What every head and neuron does: relations, wiring, roles."""
