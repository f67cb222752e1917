"""Groups on a running broker: the thin shell around `penstock.groups`."""
