"""Values of the domain: episodes, entities, facts, records, identifiers, times, the ontology."""
