"""What engines over HTTP share.

Reading order: `retry` (which failures may pass, and how long to try), `balance` (several servers, each problem stays
where its prefix is); then, for OpenAI-compatible endpoints, `client` (the only file that talks to the official SDK),
`probe` (what an endpoint can do), `request` (one body per draw), `reply` (one completion from a stream) and `ledger`
(our counts against the server's).
"""
