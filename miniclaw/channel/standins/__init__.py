"""Stand-ins for the platforms' APIs: what a bot sends can be seen without an account, and tests count it."""
