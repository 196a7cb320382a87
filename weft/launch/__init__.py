"""Processes: the launcher that starts and watches workers, what a worker does, and how workers end.

Imported before torch, so that nothing here may import it at once.
"""
