"""The other brokers of the cluster: this broker asks them questions."""
