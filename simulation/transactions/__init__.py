"""Transactions in the simulated world: clients that run them, faults aimed at them, and what must hold."""
