"""Compaction: a log keeps one record of every key, by default the last record.

Writing cleaned segments (`worker`, `cleaning`, `rewriting`, and `key_mapping` for the keys) needs
no lock: it reads finished segments and writes `.cleaned` files. Choosing segments (`eligibility`,
`cleaning_plan`, `generations`) and replacing them (`cleaner`) requires the lock.

Source: docs/compaction.md; Kafka 4.x LogCleaner.
"""
