"""Model Context Protocol, both ways."""
