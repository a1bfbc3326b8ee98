"""What a turn goes by besides its limits: the states it has, the hooks that a program gave."""
