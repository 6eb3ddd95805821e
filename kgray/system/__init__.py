"""Services of the process: file locks, tracing spans, the log of outages, garbage collection."""
