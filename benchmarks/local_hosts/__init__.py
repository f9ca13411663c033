"""Local steps on eight hosts with slow lines: torch's DistributedDataParallel, torchft's DiLoCo and docom, timed side by side."""
