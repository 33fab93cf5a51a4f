"""Many gateways as one, on Redis: the back end behind `MINICLAW_REDIS_URL`. See `docs/scale.md`."""
