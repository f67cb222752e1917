"""The differential run: the same requests to Apache Kafka and to Penstock, the answers compared.

`scenarios/` lists the requests, `world.py` sends them to one broker, `normalise.py` takes out values that may
rightly differ between any two brokers (ids, ports, times), and `compare.py` finds the differences that
remain. `../differences.toml` lists the deliberate differences, each with its reason.
"""
