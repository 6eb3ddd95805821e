"""Measurements that anyone can repeat: `kgray bench ...`. Medians and ratios of one run, never a test."""
