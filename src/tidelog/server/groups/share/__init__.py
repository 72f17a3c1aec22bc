"""Groups of the share protocol: values, the group, what changes it, and who gets what.

As in `consumer`, nothing here waits, writes or decides; `share_heartbeats` does.

Source: Kafka 4.3's share groups; KIP-932.
"""
