"""The translator: routing tables (`xds_server.routing`) to Envoy's resources, one file a resource type.

`translate(table, frontend)` is pure; a `Translator` does the same and encodes again only what changed.
"""

from xds_server.translate.translator import Translator, translate

__all__ = ["Translator", "translate"]
