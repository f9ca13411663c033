"""Hostile traffic against a site that exchanges messages with another one."""
