"""Compaction: a log keeps the last record of every key.

Writing cleaned segments needs no lock (`worker`, `cleaning`, `rewriting`; keys are mapped by
`key_mapping`): it reads finished segments and writes `.cleaned` files. Choosing segments
(`eligibility`, `cleaning_plan`, `generations`) and replacing them (`cleaner`) is the lock holder's
work.

Source: docs/compaction.md; Kafka 4.x LogCleaner.
"""
