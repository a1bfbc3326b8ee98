"""What a store in memory is made of."""
