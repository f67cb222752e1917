"""Who somebody is, what they may do and how much of it: exchanges and decisions as values. Pure.

Nothing here knows a socket, a clock, a random source or a log. Nonces and times are arguments, and what was
decided is returned.
"""
