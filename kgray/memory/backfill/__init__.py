"""Filling a memory in bulk: files and folders in, resumable, with bounds and a report."""
