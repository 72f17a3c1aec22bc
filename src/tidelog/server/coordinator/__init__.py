"""Internal topics with a broker's own state; all coordinators write and load them alike."""
