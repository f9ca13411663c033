"""The same work with docom and with what one would take instead."""
