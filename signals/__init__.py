"""What engines report and what Envoys count.

The report protocol with its client and service, membership, demand, penalties, adapters for engines. Nothing
is imported here, so that an engine may embed `signals.client` alone.
"""
