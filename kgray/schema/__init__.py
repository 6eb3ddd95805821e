"""The kinds of rows of a store, their columns and reads, and conversions to and from domain values."""
