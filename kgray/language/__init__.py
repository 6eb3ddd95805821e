"""Words and dates of texts in several languages."""
