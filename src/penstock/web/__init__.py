"""HTTP for brokers and for the console: the server, and the way from a broker's port to its console."""
