"""Programs that outside suites and SDKs are run against."""
