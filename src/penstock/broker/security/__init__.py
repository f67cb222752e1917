"""What the handlers of rules, credentials, quotas and tokens share."""
