"""weft: train graph neural networks on graphs that one machine cannot hold."""
