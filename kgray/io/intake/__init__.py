"""Input files to drafts, one row at a time: no whole file in memory, and no exception for a bad row."""
