"""The health of what is stored: reading all of it, saying what is hurt, and healing that."""
