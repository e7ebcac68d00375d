"""A fake inference engine: OpenAI-compatible on the wire, with the load curve of continuous batching.

| module | holds |
|---|---|
| `profile`, `batching`, `prefix_cache` | the pure model: load curve, batch, KV cache of conversations |
| `call`, `answer`, `refusal` | requests, answers and errors as they go over HTTP |
| `faults` | what can be switched on |
| `metrics`, `window`, `reporting` | what the engine tells about itself |
| `engine` | the asyncio shell around the model |
| `app`, `request_log` | HTTP routes and what came in on them |
| `server`, `config` | start-up and shut-down of one replica |
"""
