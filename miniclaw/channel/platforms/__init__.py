"""Turning what platforms send into our messages, and our answers into theirs."""
