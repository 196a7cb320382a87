"""Graph work on the workers of a run, tensor work in functions elsewhere."""
