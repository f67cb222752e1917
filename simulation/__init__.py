"""A cluster, its store, its network and its clients in one process, on a clock that jumps, from a seed."""
