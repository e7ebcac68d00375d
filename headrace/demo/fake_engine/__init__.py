"""A fake inference engine: OpenAI-compatible on the wire, with the load curve of continuous batching.

`profile` and `batching` are the pure model, `prefix_cache` the KV cache of conversations, `wire` what goes
over HTTP, `faults` what can be switched on, `metrics` and `reporting` what the engine tells about itself,
`engine` the asyncio shell around the model, `app` the HTTP routes, `server` start-up and shut-down.
"""
