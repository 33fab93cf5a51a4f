"""The platforms' own SDKs as judges of what we sign, encrypt and serve; `make peers` runs this in its own environment."""
