"""Messages with labelled facts, two readers of them, and their scores: `python -m bench reading`."""
