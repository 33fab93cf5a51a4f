"""The tools that come with miniClaw."""
