"""Transactional histories: what clients did and saw, from the simulator or a real run, and what is wrong with it."""
