"""Which layer, head or neuron of one model matches which of another."""
