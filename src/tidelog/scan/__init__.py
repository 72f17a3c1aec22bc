"""Reading at scale: plan, splits, Arrow; foreign directories too."""
