"""The xDS protocol without I/O: requests in, responses out; no grpc, no asyncio, no clock.

`wire` translates bytes to and from values, `subscription` is what a client asked for, `watch` one type on
one stream, `client` all streams of one Envoy and the order in which changes reach it.
"""
