"""Proofs of the locked doors: logins, TLS, rules and quotas, with real clients and hostile ones."""
