"""The pages of docs/ that are made from code: `make reference` writes them, and a test fails while one is stale."""
