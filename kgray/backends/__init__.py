"""Implementations of the model ports: offline ones, and clients of model servers and local models."""
