"""The differential run: the same requests to Apache Kafka and to Penstock, the answers compared.

`scenarios/` says what is asked, `world.py` sends it to one broker, `normalise.py` takes out what may
rightly differ between any two brokers (ids, ports, times), `compare.py` finds what is left, and
`../differences.toml` lists the differences that are deliberate, each with its reason.
"""
