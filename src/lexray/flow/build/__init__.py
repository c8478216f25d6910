"""What is in a flow graph: nodes, edges, shares."""
