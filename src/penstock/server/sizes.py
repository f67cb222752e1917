"""Sizes and times that the connection's code is built around. `limits` has those that an operator may want to
change.
"""

SCRATCH_BYTES = 262_144
"""What one read takes at most. Larger reads gain nothing, smaller ones cost system calls."""

KEPT_BYTES_MAX = 32_768
"""Frames up to here are completed in the scratch; larger ones that arrive in parts get their own buffer."""

FRAME_BYTES_MIN = 8
"""Api key, version and correlation id: what any request begins with."""

GROWTH = 8
"""A frame's own buffer is at most so many times the bytes that have arrived."""

GROWTH_FLOOR = 16_384

TRUSTED_MAX = 2 * 1024 * 1024
"""However large the frames were that a peer sent. Batches are rarely larger."""

JOINED_BYTES_MAX = 8192
"""Answers up to this size are copied together before they are sent; records of larger ones are not."""

JOINED_PIECE_BYTES = 4096
"""Unless their pieces are smaller than this on average: handing each over costs more than copying it."""

TURN_SECONDS = 0.002
"""How long the requests of one connection are taken one after the other while others wait."""

TURN_REQUESTS = 8
"""The clock is looked at after so many."""

PROGRESS_BYTES = 16_384
"""A peer that takes less of its answers than this between two looks is not getting on."""
