"""The differential run behind locked doors: both brokers have logins, the authorizer and super users.

`servers.py` starts them, `actors.py` derives users and their access rules from the registry, `requests.py` makes a
request of every API at every version from its definition, `derived.py` has each of them asked by each user, and
`mixtures.py` asks what no row derives. Whatever prepares or observes is sent by a super user, on a
listener without logins.
"""
