"""Implementations of the model ports: offline models, clients of model servers, local models."""
