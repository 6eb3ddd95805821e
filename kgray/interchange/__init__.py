"""Graphs in the formats of other tools: `formats` has the table, `snapshot` the input of writers."""
