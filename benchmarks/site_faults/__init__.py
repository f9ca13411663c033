"""Sites as processes of their own, and what may happen to them: killed, restarted, cut off, slowed down, joined."""
