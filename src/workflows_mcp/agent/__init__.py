"""How a run is worded for a model: what it is asked, what it is told, and how much of it at a time.

Reads a run (`machine`) and never changes it.
"""
