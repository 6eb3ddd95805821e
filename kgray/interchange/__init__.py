"""Graphs in the formats of other tools: `formats` has the table, `snapshot` what a writer reads."""
