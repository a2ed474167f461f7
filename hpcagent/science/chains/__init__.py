"""Chains: functions over the futures of apps, steerable as one app."""
