"""The integration tests that client libraries ship, run against a broker; one module per library."""
