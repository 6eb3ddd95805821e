"""Measurements that anyone can repeat: `python -m bench ...`. Medians and ratios of one run, never a test."""
