"""Compaction: a log keeps the last record of every key.

What stays (`rules`, `transactions`), the offset map (`offset_map`), and the writing of cleaned
segments (`cleaning`, `rewriting`) need no lock: they read finished segments and write `.cleaned`
files. Choosing what to clean and swapping it in are the lock's holder's.

Source: docs/compaction.md; Kafka 4.x LogCleaner.
"""
