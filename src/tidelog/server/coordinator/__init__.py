"""Internal topics with a broker's own state, and the code by which all coordinators use them."""
