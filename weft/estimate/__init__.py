"""What decides: counts of what plans would do, models of their time and memory, and the choice among them."""
