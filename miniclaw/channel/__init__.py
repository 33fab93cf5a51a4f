"""Channels: the ways in and out."""
