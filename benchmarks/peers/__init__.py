"""The same work on other engines, through their public packages, at their best settings."""
