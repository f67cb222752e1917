"""What people ask of a cluster and change in it: the command line and the console share it.

It speaks Kafka's protocol to the brokers of any cluster, with the rights of whoever asks.
"""
