"""How calls reach a provider and answers come back, the same for every vendor."""
