"""Tests of query plans: no verb may come to scan what grows."""
