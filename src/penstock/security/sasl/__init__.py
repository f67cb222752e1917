"""The server's side of SASL: one exchange for each login, as a state machine. Pure.

    exchange = Scram(Mechanism.SCRAM_SHA_256, nonce, credential_of, decoy_secret)
    match exchange.respond(token, now_ms):
        case Challenge(token): send the token, wait for the next one
        case Done(principal, ...): send the token; the client is that principal
        case Failed(message, reason): SASL_AUTHENTICATION_FAILED with the message; the reason is for the audit

`exchange` has these words, `plain`, `scram` and `oauthbearer` the mechanisms.
"""
