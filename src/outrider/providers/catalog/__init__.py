"""What is known about models: limits, abilities and prices."""

from outrider.providers.catalog.catalog import Catalog
from outrider.providers.catalog.facts import Capabilities, ModelFacts, Prices, Tier

__all__ = ["Capabilities", "Catalog", "ModelFacts", "Prices", "Tier"]
