"""From records to the graph: a pure derivation, which is stored only as an index, never as the truth."""
