"""miniOpenClaw: a personal and team agent gateway."""

__all__ = ["__version__"]

__version__ = "0.1.0"
