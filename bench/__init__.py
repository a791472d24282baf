"""Measurements, all in one run, printed as ratios: `make bench`."""
