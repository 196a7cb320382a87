"""Reducers, schedules, and the view of the graph that layers are written against."""

from weft.aggregate.noise import Noise, hash_key, hash_uniform
from weft.aggregate.view import EdgeRows, GraphView

__all__ = ["EdgeRows", "GraphView", "Noise", "hash_key", "hash_uniform"]
