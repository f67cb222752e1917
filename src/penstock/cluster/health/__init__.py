"""The health of the store: reads all of it, says what is hurt, and heals that."""
