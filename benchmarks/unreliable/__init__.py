"""What networks that change and fail cost: which methods survive what, a slow agent, and the simulator's own speed."""
