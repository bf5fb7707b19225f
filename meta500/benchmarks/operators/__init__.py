"""Level 0: single operators, their correctness, gradients, times and shares of the machine's roofline."""
