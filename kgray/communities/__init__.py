"""Communities: entities that belong together, found by their facts, named, summarised, published and read."""
