"""What ships behind the ports: models that need nothing, and doors to those that do."""
